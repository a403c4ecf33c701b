"""Calls that a grammar enforces, and thoughts that get too long, by a model of random weights."""

import json
import pathlib

import pytest

from tests.app.chat.conftest import URL
from tests.app.conftest import frames
from tests.engine.forced import exl2_backend
from tests.scripted import ScriptedBackend, says

CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
CITY = {**CITY, "additionalProperties": False}
HOUR = {"type": "object", "properties": {"hour": {"enum": [1, 2]}}, "required": ["hour"]}
HOUR = {**HOUR, "additionalProperties": False}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
ALARM = {"type": "function", "function": {"name": "set_alarm", "parameters": HOUR}}
REQUEST = {
    "messages": [{"role": "user", "content": "Weather?"}],
    "tools": [WEATHER, ALARM],
    "temperature": 1.5,
    "max_tokens": 600,
}
VALID = {
    "get_weather": [{"city": "Rome"}, {"city": "Oslo"}],
    "set_alarm": [{"hour": 1}, {"hour": 2}],
}
MARKS = {
    "function-tag": "<function=",
    "hermes": "<tool_call>",
    "mistral-args": "[TOOL_CALLS][ARGS]",
    "mistral": "[TOOL_CALLS]",
    "llama3": '"parameters": name',
}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{# MARKS #}{% if tools %} {% endif %}"
THINKS = TEMPLATE + "<think>\n"


@pytest.fixture
def ask(make_client, with_template):
    """What a random model answers: (finish_reason, message)."""
    clients = {}

    def ask(template, **more):
        if template not in clients:
            path = with_template(template)
            clients[template] = make_client(exl2_backend(path), path=path)
        response = clients[template].post(URL, json={**REQUEST, **more})
        assert response.status_code == 200, response.json
        [choice] = response.json["choices"]
        return choice["finish_reason"], choice["message"]

    return ask


@pytest.mark.parametrize("format", MARKS)
def test_a_call_that_must_be_made_is_made_in_the_models_format(ask, format):
    for seed in range(3):
        reason, message = ask(
            TEMPLATE.replace("MARKS", MARKS[format]),
            tool_choice="required",
            parallel_tool_calls=False,
            seed=seed,
        )
        assert (reason, message["content"]) == ("tool_calls", None)
        [call] = message["tool_calls"]
        assert json.loads(call["function"]["arguments"]) in VALID[call["function"]["name"]]


@pytest.mark.parameter("tool_choice.type", "/v1/chat/completions")
@pytest.mark.parameter("tool_choice.function")
@pytest.mark.parameter("tool_choice.function.name")
def test_the_function_that_is_named_is_called_once(ask):
    for name in VALID:
        named = {"type": "function", "function": {"name": name}}
        _, message = ask(TEMPLATE.replace("MARKS", "<tool_call>"), tool_choice=named)
        assert [call["function"]["name"] for call in message["tool_calls"]] == [name]


def test_tags_that_are_special_tokens_are_told_apart_from_text(make_client, with_template):
    template = TEMPLATE.replace("MARKS", MARKS["mistral-args"]) + "[THINK]"
    path = pathlib.Path(with_template(template))
    tokenizer = (path / "tokenizer.json").read_text()
    for token, tag in (("<pad>", "[TOOL_CALLS]"), ("<|im_start|>", "[/THINK]")):
        assert json.dumps(token) in tokenizer
        tokenizer = tokenizer.replace(json.dumps(token), json.dumps(tag))
    (path / "tokenizer.json").write_text(tokenizer)
    settings = {"reasoning_start": "[THINK]", "reasoning_end": "[/THINK]"}
    backend = exl2_backend(str(path))
    client = make_client(backend, path=str(path), **settings)
    assert {"[TOOL_CALLS]", "[/THINK]"} <= client.models.get().tokenizer.tag_ids.keys()
    request = {**REQUEST, "tool_choice": "required", "parallel_tool_calls": False}
    [choice] = client.post(URL, json={**request, "reasoning_budget": 5}).json["choices"]
    assert choice["message"]["reasoning_content"] and choice["message"]["content"] is None
    [call] = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) in VALID[call["function"]["name"]]


def test_thoughts_come_before_a_call_that_must_be_made(ask):
    reason, message = ask(
        THINKS.replace("MARKS", "<tool_call>"), tool_choice="required", reasoning_budget=5
    )
    assert message["reasoning_content"]
    assert reason == "tool_calls" and message["content"] is None


@pytest.mark.parameter("reasoning_budget")
@pytest.mark.parametrize("template", [THINKS, TEMPLATE + "{# <think> #}"])
def test_thoughts_end_with_their_budget(make_client, with_template, template):
    path = with_template(template)
    client = make_client(exl2_backend(path), path=path)
    request = {**REQUEST, "tools": [], "max_tokens": 60, "ignore_eos": True, "temperature": 0}
    counts = {}
    for budget in (7, 0, 12):
        body = client.post(URL, json={**request, "reasoning_budget": budget}).json
        message = body["choices"][0]["message"]
        assert message["content"]
        counts[budget] = body["usage"]["completion_tokens_details"]["reasoning_tokens"]
    end = len(client.models.get().tokenizer.encode_template("</think>", 100))
    assert counts == {7: 7 + end, 0: end, 12: 12 + end}


@pytest.mark.parametrize("end", ["<think>", "<think>\n", "<think>\n\n"])
def test_a_budget_opens_no_thoughts_that_are_open(make_client, with_template, end):
    """The line's end is written out: those at the end of a template are left out."""
    template = f"{TEMPLATE}{{{{ {json.dumps(end)} }}}}"
    client = make_client(ScriptedBackend(says("x")), path=with_template(template))
    request = {"messages": REQUEST["messages"], "reasoning_budget": 5}
    prompt = client.post("/apply-template", json=request).json["prompt"]
    assert prompt == f"Weather?{end}"


@pytest.mark.parametrize(
    ("template", "settings"),
    [(TEMPLATE, {}), (THINKS, {"reasoning_end": ""}), (THINKS + "\n</think>\n", {})],
)
def test_a_budget_is_refused_where_there_are_no_thoughts(
    make_client, with_template, template, settings
):
    backend = ScriptedBackend(says("x"))
    client = make_client(backend, path=with_template(template), **settings)
    response = client.post(URL, json={**REQUEST, "reasoning_budget": 5})
    assert (response.status_code, response.json["error"]["param"]) == (400, "reasoning_budget")


def verdict(client, job, text):
    """On the text, by a job's constraint: it may `end` there, must `go on`, or is `refused`."""
    model = client.models.get()
    matcher = model.grammars.matcher(job.constraint.grammar)
    if not all(map(matcher.consume_token, model.tokenizer._ordinary(text))):
        return "refused"
    return "end" if matcher.is_accepting() else "go on"


@pytest.mark.parameter("tools[].function.strict")
@pytest.mark.parametrize(
    ("format", "call", "bad"),
    [
        ("function-tag", '<function=get_weather>{"city": "Rome"}</function>', "<function=x"),
        (
            "hermes",
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>',
            '<tool_call>\n{"name": "get_weather", "arguments": {"town"',
        ),
        ("mistral-args", '[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"}', "[TOOL_CALLS]["),
        (
            "mistral",
            '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Rome"}}, '
            '{"name": "set_alarm", "arguments": {"any": 5}}]',
            '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Roma',
        ),
        ("llama3", '{"name": "get_weather", "parameters": {"city": "Rome"}}', '{"answer": 42}'),
    ],
)
def test_a_strict_function_is_called_by_its_schema_or_not_at_all(
    make_client, with_template, format, call, bad
):
    backend = ScriptedBackend(says("x"))
    client = make_client(backend, path=with_template(TEMPLATE.replace("MARKS", MARKS[format])))
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    assert client.post(URL, json={**REQUEST, "tools": [strict, ALARM]}).status_code == 200
    [job] = backend.enqueued
    assert verdict(client, job, call) == "end"
    assert verdict(client, job, call[: len(call) // 2]) == "go on"
    assert verdict(client, job, "") == verdict(client, job, "It rains <tool") == "end"
    assert verdict(client, job, bad) == "refused"
    if format != "llama3":
        assert verdict(client, job, f"Well.\n{call}\n{call}\nSo.") == "end"


@pytest.mark.parametrize(("text", "choice"), [("So:", "auto"), ("", "required")])
def test_an_enforced_call_may_begin_with_a_special_token(make_client, with_tokens, text, choice):
    backend = ScriptedBackend(says("x"))
    path = with_tokens(["<tool_call>", "</tool_call>"])
    client = make_client(backend, path=path, tool_format="hermes")
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    client.post(URL, json={**REQUEST, "tools": [strict], "tool_choice": choice})
    model, [job] = client.models.get(), backend.enqueued
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    for said, is_taken in ((call, True), (call.replace("Rome", "Roma"), False)):
        matcher = model.grammars.matcher(job.constraint.grammar)
        token_ids = model.tokenizer.encode(text + said, 2048, False, parse_special=True)
        assert all(map(matcher.consume_token, token_ids)) == is_taken


@pytest.mark.parametrize(
    ("format", "tags"),
    [
        ("function-tag", ["</function>"]),
        ("hermes", ["<tool_call>", "</tool_call>"]),
        ("mistral-args", ["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"]),
        ("mistral", ["[TOOL_CALLS]"]),
        ("llama3", ["<|python_tag|>"]),
    ],
)
def test_special_tokens_of_calls_are_shown_beside_tools_alone(
    make_client, with_tokens, format, tags
):
    """Otherwise the generator leaves them out of the text that is looked through for calls."""
    backend = ScriptedBackend(says("x"))
    every = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"]
    path = with_tokens([*every, "<|python_tag|>", "<function=", "</function>"])
    client = make_client(backend, path=path, tool_format=format)
    for more in ({"tools": None}, {}):
        assert client.post(URL, json={**REQUEST, **more}).status_code == 200
    without, beside = (job.shown_token_ids for job in backend.enqueued)
    tokenizer = client.models.get().tokenizer
    assert without == () and sorted(map(tokenizer.token, beside)) == sorted(tags)


@pytest.mark.parametrize(
    ("more", "second"),
    [
        ({"tool_choice": "required"}, "end"),
        ({"tool_choice": "required", "parallel_tool_calls": False}, "refused"),
        ({"tool_choice": {"type": "function", "function": {"name": "set_alarm"}}}, "refused"),
    ],
)
def test_several_calls_may_be_made_where_one_must_but_none_is_named(make_client, more, second):
    backend = ScriptedBackend(says("x"))
    client = make_client(backend)
    client.post(URL, json={**REQUEST, **more})
    call = '<tool_call>\n{"name": "set_alarm", "arguments": {"hour": 1}}\n</tool_call>'
    [job] = backend.enqueued
    assert verdict(client, job, call) == "end"
    assert verdict(client, job, f"{call}\n{call}") == second
    assert verdict(client, job, "") == "go on"


def test_without_strict_functions_nothing_is_enforced(make_client):
    backend = ScriptedBackend(says("x"))
    make_client(backend).post(URL, json=REQUEST)
    assert backend.enqueued[0].constraint is None


def test_a_schema_that_cannot_be_enforced_is_refused_where_it_must(make_client):
    backend = ScriptedBackend(says("x"))
    client = make_client(backend)
    function = {"name": "f", "parameters": {"type": "object", "not": {"required": ["x"]}}}
    tools = [{"type": "function", "function": {**function, "strict": True}}]
    response = client.post(URL, json={**REQUEST, "tools": tools})
    assert (response.status_code, response.json["error"]["param"]) == (400, "tools")
    tools = [{"type": "function", "function": function}]
    response = client.post(URL, json={**REQUEST, "tools": tools, "tool_choice": "required"})
    assert response.status_code == 200
    [job] = backend.enqueued
    call = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
    assert verdict(client, job, call) == "end"
    assert verdict(client, job, "It") == "refused"


def test_a_streamed_call_that_must_be_made_is_whole(make_client, with_template):
    path = with_template(TEMPLATE.replace("MARKS", "<tool_call>"))
    client = make_client(exl2_backend(path), path=path)
    request = {**REQUEST, "tool_choice": "required", "parallel_tool_calls": False, "stream": True}
    choices = [body["choices"][0] for body in frames(client.post(URL, json=request))]
    calls = [call for c in choices for call in c["delta"].get("tool_calls", [])]
    assert calls[0]["function"]["name"] in VALID
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert json.loads(arguments) in VALID[calls[0]["function"]["name"]]
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_schemas_of_tools_are_enforced_as_far_as_they_can_be_together(make_client, with_template):
    """Each could be alone."""
    backend = ScriptedBackend(says("x"))
    client = make_client(backend, path=with_template(TEMPLATE.replace("MARKS", "<tool_call>")))
    large = {"type": "object", "patternProperties": {f"^{i}x": {} for i in range(70)}}
    tools = [
        {"type": "function", "function": {"name": f"t{i}", "parameters": large}} for i in range(5)
    ]
    request = {**REQUEST, "tools": tools, "tool_choice": "required", "max_tokens": 5}
    client.post(URL, json=request)
    [job] = backend.enqueued
    assert job.constraint.grammar.count("^69x") == 4  # a pattern, and not it, of two schemas
    assert job.constraint.grammar.count("<tool_call>") == 5
    for tool in tools:
        tool["function"]["strict"] = True
    response = client.post(URL, json=request)
    assert (response.status_code, response.json["error"]["param"]) == (400, "tools")


@pytest.mark.parametrize(
    ("template", "last", "after"),
    [
        (THINKS, "Weather?", "</think>"),
        (TEMPLATE, "Weather?", ""),
        (TEMPLATE + "<think>\n\n</think>\n\n", "Weather?", ""),
        (TEMPLATE, "<think>\nWell", "</think>"),  # thoughts that the answer goes on with
        (TEMPLATE, "<think>\nWell</think>\n", ""),
    ],
)
def test_a_form_begins_behind_the_thoughts_where_there_are_any(
    make_client, with_template, template, last, after
):
    backend = ScriptedBackend(says("x"))
    client = make_client(backend, path=with_template(template))
    goes_on = last != "Weather?"
    message = {"role": "assistant" if goes_on else "user", "content": last}
    request = {"messages": [message], "response_format": {"type": "json_object"}}
    if goes_on:
        request |= {"continue_final_message": True, "add_generation_prompt": False}
    response = client.post(URL, json=request)
    assert response.status_code == 200, response.json
    assert backend.enqueued[0].constraint.after == after
