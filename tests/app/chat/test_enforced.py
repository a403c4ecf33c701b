"""Calls that a grammar enforces, and thoughts that get too long, by a model of random weights."""

import json
import pathlib

import pytest

from tests.app.chat.conftest import URL
from tests.engine.forced import exl2_backend

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
CALLS = {
    "function-tag": '<function=get_weather>{"city": "CITY"}</function>',
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "CITY"}}\n</tool_call>',
    "mistral-args": '[TOOL_CALLS]get_weather[ARGS]{"city": "CITY"}',
    "mistral": '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "CITY"}}]',
    "llama3": '{"name": "get_weather", "parameters": {"city": "CITY"}}',
}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{# MARKS #}{% if tools %} {% endif %}"
THINKS = TEMPLATE + "<think>\n"

HERMES = TEMPLATE.replace("MARKS", MARKS["hermes"])
ONE_CALL = {"tool_choice": "required", "parallel_tool_calls": False}
STRICT = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
CALL = CALLS["hermes"].replace("CITY", "Rome")


def named(name):
    return {"type": "function", "function": {"name": name}}


def is_valid(calls):
    """There is one, of a function and its schema."""
    [function] = [call["function"] for call in calls]
    return json.loads(function["arguments"]) in VALID[function["name"]]


@pytest.mark.parametrize("format", MARKS)
def test_a_call_that_must_be_made_is_made_in_the_models_format(make_client, with_template, format):
    path = with_template(TEMPLATE.replace("MARKS", MARKS[format]))
    client = make_client(exl2_backend(path), path=path)
    for seed in range(3):
        [choice] = client.post(URL, json={**REQUEST, **ONE_CALL, "seed": seed}).json["choices"]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
        assert is_valid(choice["message"]["tool_calls"])


def test_tags_that_are_special_tokens_are_told_apart_from_text(make_client, with_template):
    template = TEMPLATE.replace("MARKS", MARKS["mistral-args"]) + "[THINK]"
    path = pathlib.Path(with_template(template))
    tokenizer = (path / "tokenizer.json").read_text()
    for token, tag in (("<pad>", "[TOOL_CALLS]"), ("<|im_start|>", "[/THINK]")):
        assert json.dumps(token) in tokenizer
        tokenizer = tokenizer.replace(json.dumps(token), json.dumps(tag))
    (path / "tokenizer.json").write_text(tokenizer)
    settings = {"reasoning_start": "[THINK]", "reasoning_end": "[/THINK]"}
    client = make_client(exl2_backend(str(path)), path=str(path), **settings)
    assert {"[TOOL_CALLS]", "[/THINK]"} <= client.models.get().tokenizer.tag_ids.keys()
    body = client.post(URL, json={**REQUEST, **ONE_CALL, "reasoning_budget": 5}).json
    message = body["choices"][0]["message"]
    assert message["reasoning_content"] and message["content"] is None
    assert is_valid(message["tool_calls"])


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
def test_a_budget_opens_no_thoughts_that_are_open(chat, end):
    """The line's end is written out: those at the end of a template are left out."""
    template = f"{TEMPLATE}{{{{ {json.dumps(end)} }}}}"
    request = {"messages": REQUEST["messages"], "reasoning_budget": 5}
    response = chat(request, template=template, url="/apply-template").response
    assert response.json["prompt"] == f"Weather?{end}"


@pytest.mark.parametrize(
    ("template", "settings"),
    [(TEMPLATE, {}), (THINKS, {"reasoning_end": ""}), (THINKS + "\n</think>\n", {})],
)
def test_a_budget_is_refused_where_there_are_no_thoughts(chat, template, settings):
    asked = chat({**REQUEST, "reasoning_budget": 5}, template=template, **settings)
    assert asked.refusal == "reasoning_budget"


@pytest.mark.parameter("tools[].function.strict")
@pytest.mark.parametrize(
    ("format", "bad"),
    [
        ("function-tag", "<function=x"),
        ("hermes", '<tool_call>\n{"name": "get_weather", "arguments": {"town"'),
        ("mistral-args", "[TOOL_CALLS]["),
        ("mistral", '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Roma'),
        ("llama3", '{"answer": 42}'),
    ],
)
def test_a_strict_function_is_called_by_its_schema_or_not_at_all(chat, format, bad):
    call = CALLS[format].replace("CITY", "Rome")
    if format == "mistral":
        call = f'{call[:-1]}, {{"name": "set_alarm", "arguments": {{"any": 5}}}}]'
    template = TEMPLATE.replace("MARKS", MARKS[format])
    verdict = chat({**REQUEST, "tools": [STRICT, ALARM]}, template=template).verdict
    assert verdict(call) == "end"
    assert verdict(call[: len(call) // 2]) == "go on"
    assert verdict("") == verdict("It rains <tool") == "end"
    assert verdict(bad) == "refused"
    if format != "llama3":
        assert verdict(f"Well.\n{call}\n{call}\nSo.") == "end"


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
def test_special_tokens_of_calls_are_shown_beside_tools_alone(chat, with_tokens, format, tags):
    """Otherwise the generator leaves them out of the text that is looked through for calls."""
    every = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"]
    path = with_tokens([*every, "<|python_tag|>", "<function=", "</function>"])
    without = chat({**REQUEST, "tools": None}, path=path, tool_format=format)
    assert without.job.shown_token_ids == ()
    beside = without.again(REQUEST).job.shown_token_ids
    tokenizer = without.client.models.get().tokenizer
    assert sorted(map(tokenizer.token, beside)) == sorted(tags)


@pytest.mark.parameter("tool_choice.type", "/v1/chat/completions")
@pytest.mark.parameter("tool_choice.function tool_choice.function.name")
@pytest.mark.parametrize(
    ("more", "second", "other"),
    [
        ({"tool_choice": "required"}, "end", "end"),
        ({"tool_choice": "required", "parallel_tool_calls": False}, "refused", "end"),
        ({"tool_choice": named("set_alarm")}, "refused", "refused"),
    ],
)
def test_several_calls_may_be_made_where_one_must_but_none_is_named(chat, more, second, other):
    verdict = chat({**REQUEST, **more}).verdict
    call = '<tool_call>\n{"name": "set_alarm", "arguments": {"hour": 1}}\n</tool_call>'
    texts = (call, f"{call}\n{call}", CALL, "")
    assert [*map(verdict, texts)] == ["end", second, other, "go on"]


def test_without_strict_functions_nothing_is_enforced(chat):
    assert chat(REQUEST).job.constraint is None


def test_a_schema_that_cannot_be_enforced_is_refused_where_it_must(chat):
    function = {"name": "f", "parameters": {"type": "object", "not": {"required": ["x"]}}}
    tools = [{"type": "function", "function": {**function, "strict": True}}]
    asked = chat({**REQUEST, "tools": tools})
    assert asked.refusal == "tools"
    tools = [{"type": "function", "function": function}]
    asked = asked.again({**REQUEST, "tools": tools, "tool_choice": "required"})
    call = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
    assert (asked.verdict(call), asked.verdict("It")) == ("end", "refused")


def test_schemas_of_tools_are_enforced_as_far_as_they_can_be_together(chat):
    """Each could be alone."""
    large = {"type": "object", "patternProperties": {f"^{i}x": {} for i in range(70)}}
    tools = [named(f"t{i}") for i in range(5)]
    for tool in tools:
        tool["function"]["parameters"] = large
    request = {**REQUEST, "tools": tools, "tool_choice": "required", "max_tokens": 5}
    asked = chat(request, template=HERMES)
    grammar = asked.job.constraint.grammar
    assert grammar.count("^69x") == 4  # a pattern, and not it, of two schemas
    assert grammar.count("<tool_call>") == 5
    for tool in tools:
        tool["function"]["strict"] = True
    assert asked.again(request).refusal == "tools"


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
def test_a_form_begins_behind_the_thoughts_where_there_are_any(chat, template, last, after):
    goes_on = last != "Weather?"
    message = {"role": "assistant" if goes_on else "user", "content": last}
    request = {"messages": [message], "response_format": {"type": "json_object"}}
    if goes_on:
        request |= {"continue_final_message": True, "add_generation_prompt": False}
    assert chat(request, template=template).job.constraint.after == after
