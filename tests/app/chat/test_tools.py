"""Tools at POST /v1/chat/completions, over a backend that says what a test wants."""

import itertools
import json

import pytest

from tests.app.conftest import frames, wait_until_empty
from tests.scripted import ScriptedBackend, finished, says

URL = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city <|im_end|>",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
QUESTION = {"messages": [{"role": "user", "content": "Weather?"}], "tools": [WEATHER, TIME]}
CALL = ['Well.\n<tool_call>\n{"name": "get_weather", "argu', 'ments": {"city": ', '"Rome"}}']
CALLS = [*CALL, "\n</tool_call>\n<tool_call>", '{"name": "get_time", "arguments": {}}</tool_call>']


def allowed(*names):
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}}


def prompt_of(client, backend):
    return client.models.get().tokenizer.decode(backend.enqueued[-1].prompt)


@pytest.mark.parameter("tools", "/v1/chat/completions")
@pytest.mark.parameter("tools[].type", "/v1/chat/completions")
@pytest.mark.parameter("tools[].function")
@pytest.mark.parameter("tools[].function.name")
def test_calls_of_tools_are_told_apart_from_text(make_client):
    body = make_client(ScriptedBackend(says(*CALLS))).post(URL, json=QUESTION).json
    [choice] = body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Well."
    weather, time = choice["message"]["tool_calls"]
    assert weather["type"] == "function" and weather["id"].startswith("call_")
    assert weather["function"] == {"name": "get_weather", "arguments": '{"city": "Rome"}'}
    assert time["function"] == {"name": "get_time", "arguments": "{}"}
    assert weather["id"] != time["id"]


def test_what_was_held_back_for_a_call_that_never_came_is_text(make_client):
    client = make_client(ScriptedBackend(says("So ", "<tool_ca")))
    assert client.post(URL, json=QUESTION).json["choices"][0]["message"]["content"] == "So <tool_ca"
    deltas = frames(client.post(URL, json={**QUESTION, "stream": True}))
    told = [c["delta"].get("content") or "" for body in deltas for c in body["choices"]]
    assert "".join(told) == "So <tool_ca"


def test_a_form_that_has_something_like_a_call_in_it_is_text(make_client):
    pieces = ['{"note": "', '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>', '"}']
    client = make_client(ScriptedBackend(says(*pieces)))
    body = {**QUESTION, "response_format": {"type": "json_object"}}
    [choice] = client.post(URL, json=body).json["choices"]
    assert choice["message"]["content"] == "".join(pieces)
    assert not choice["message"].get("tool_calls") and choice["finish_reason"] == "stop"


def test_streamed_calls_begin_with_a_name_and_go_on_with_arguments(make_client):
    client = make_client(ScriptedBackend(says(*CALLS)))
    bodies = frames(client.post(URL, json={**QUESTION, "stream": True}))
    choices = [body["choices"][0] for body in bodies]
    deltas = [choice["delta"] for choice in choices]
    first, second = (d["tool_calls"][0] for d in deltas if "id" in d.get("tool_calls", [{}])[0])
    assert first.pop("id") != second.pop("id")
    assert first == {
        "index": 0,
        "type": "function",
        "function": {"name": "get_weather", "arguments": ""},
    }
    arguments = [
        (call["index"], call["function"]["arguments"])
        for delta in deltas
        for call in delta.get("tool_calls", [])
        if "id" not in call and "type" not in call
    ]
    assert arguments == [(0, '{"city": '), (0, '"Rome"}'), (1, "{}")]
    assert [d["content"] for d in deltas if "content" in d] == [None, "Well."]
    assert [c["finish_reason"] for c in choices][-2:] == [None, "tool_calls"]


def test_content_is_null_where_there_are_only_calls(make_client):
    client = make_client(ScriptedBackend(says("\n<tool_call>", CALLS[-1], "\n")))
    message = client.post(URL, json=QUESTION).json["choices"][0]["message"]
    assert message["content"] is None and len(message["tool_calls"]) == 1


def test_a_call_cut_off_by_the_limit_says_so(make_client):
    client = make_client(ScriptedBackend(says(*CALL[:2], reason="length")))
    [choice] = client.post(URL, json=QUESTION).json["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": '


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("pieces", "stop_reason", "reason"),
    [
        (CALL[:2], '"', "stop"),
        (CALL[:2], 5, "stop"),
        (CALL[:2], "loop", "stop"),
        ((*CALLS[:-1], CALLS[-1][:-14]), "}", "stop"),  # the second of two
        (CALL[:2], None, "tool_calls"),  # the model's own end
        (CALL, "</tool_call>", "tool_calls"),
    ],
)
def test_a_call_that_a_stop_cuts_off_is_not_told_as_one_to_make(
    make_client, pieces, stop_reason, reason, stream
):
    client = make_client(ScriptedBackend(says(*pieces, stop_reason=stop_reason)))
    response = client.post(URL, json={**QUESTION, "stream": stream})
    [choice] = frames(response)[-1]["choices"] if stream else response.json["choices"]
    assert (choice["finish_reason"], choice.get("stop_reason")) == (reason, stop_reason)


@pytest.mark.parameter("parallel_tool_calls", "/v1/chat/completions")
@pytest.mark.parametrize("stream", [False, True])
def test_without_parallel_calls_the_job_ends_with_the_first(make_client, stream):
    def many_calls(job):
        started, *chunks, _ = says(*CALL, "\n</tool_call>\n")(job)
        yield started
        yield from itertools.islice(itertools.cycle(chunks), 20_000)
        yield finished(job, 20_000)

    backend = ScriptedBackend(many_calls)
    client = make_client(backend)
    request = {**QUESTION, "parallel_tool_calls": False, "stream": stream}
    response = client.post(URL, json=request)
    bodies = frames(response) if stream else [response.json]
    parts = [choice.get("delta", choice.get("message")) for b in bodies for choice in b["choices"]]
    calls = [call for part in parts for call in part.get("tool_calls", [])]
    assert {call.get("index", 0) for call in calls} == {0}
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert json.loads(arguments) == {"city": "Rome"}
    assert bodies[-1]["choices"][0]["finish_reason"] == "tool_calls"
    wait_until_empty(client)
    assert sum(backend.num_chunks.values()) < 20_000


@pytest.mark.parameter("tools[].function.description")
@pytest.mark.parameter("tools[].function.parameters")
def test_a_model_without_tools_is_told_of_them_by_the_system(make_client):
    backend = ScriptedBackend(says("x"))
    client = make_client(backend)
    messages = [{"role": "developer", "content": "Be brief."}, *QUESTION["messages"]]
    client.post(URL, json={**QUESTION, "messages": messages})
    prompt = prompt_of(client, backend)
    assert prompt.startswith("system\nBe brief.\n\n# Tools")
    assert '{"name": "get_weather", "description": "The weather of a city <|im_end|>"' in prompt
    assert "<tool_call>" in prompt and '{"name": "get_time", "description": ""' in prompt
    forbidden = client.models.get().tokenizer.token_id("<|im_end|>")
    assert backend.enqueued[0].prompt.count(forbidden) == 2  # the template's own


@pytest.mark.parameter("messages[].content[].type")
@pytest.mark.parameter("messages[].content[].text")
@pytest.mark.parameter("messages[].tool_calls")
@pytest.mark.parameter("messages[].tool_calls[].function")
@pytest.mark.parameter("messages[].tool_calls[].function.name")
@pytest.mark.parameter("messages[].tool_calls[].function.arguments", "/v1/chat/completions")
def test_calls_and_results_are_told_to_a_model_without_tools(make_client):
    backend = ScriptedBackend(says("x"))
    client = make_client(backend)
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city":"Rome"}'},
    }
    messages = [
        *QUESTION["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sun."},
        {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "Rain."}]},
    ]
    assert client.post(URL, json={"messages": messages}).status_code == 200
    expected = (
        'user\nWeather?\nassistant\n<tool_call>\n{"name": "get_weather", "arguments":'
        ' {"city": "Rome"}}\n</tool_call>\nuser\n<tool_response>\nSun.\n</tool_response>\n'
        "<tool_response>\nRain.\n</tool_response>\nassistant\n"
    )
    assert prompt_of(client, backend) == expected


@pytest.mark.parameter("tool_choice", "/v1/chat/completions")
def test_with_choice_none_the_model_sees_no_tools_and_calls_are_text(make_client):
    backend = ScriptedBackend(says(*CALL))
    client = make_client(backend)
    body = client.post(URL, json={**QUESTION, "tool_choice": "none"}).json
    assert body["choices"][0]["message"]["content"] == "".join(CALL)
    assert body["choices"][0]["finish_reason"] == "stop"
    assert prompt_of(client, backend) == "user\nWeather?\nassistant\n"


@pytest.mark.parameter("tool_choice.type", "/v1/chat/completions")
@pytest.mark.parameter("tool_choice.allowed_tools")
@pytest.mark.parameter("tool_choice.allowed_tools.mode")
@pytest.mark.parameter("tool_choice.allowed_tools.tools")
@pytest.mark.parameter("tool_choice.allowed_tools.tools[].type")
@pytest.mark.parameter("tool_choice.allowed_tools.tools[].function")
@pytest.mark.parameter("tool_choice.allowed_tools.tools[].function.name")
def test_allowed_tools_are_all_that_the_model_sees(make_client):
    backend = ScriptedBackend(says(*CALLS))
    client = make_client(backend)
    request = {**QUESTION, "tool_choice": allowed("get_time")}
    message = client.post(URL, json=request).json["choices"][0]
    assert "get_weather" not in prompt_of(client, backend)
    [call] = message["message"]["tool_calls"]
    assert call["function"]["name"] == "get_time"
    assert message["message"]["content"].startswith("".join(CALL))


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools.0.type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [TIME, TIME]}, "tools"),
        ({"tools": [TIME] * 513}, "tools"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tool_choice": allowed("get_time", "no")}, "tool_choice"),
        ({"functions": [TIME["function"]]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"chat_template": "{{ x }}"}, "chat_template"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"enable_feeling": False}}, "chat_template_kwargs"),
        ({"enable_thinking": True, "thinking": {"type": "disabled"}}, "thinking"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"documents": [{"text": "x"}]}, "documents"),
        ({"continue_final_message": True}, "continue_final_message"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_its_name(make_client, change, param):
    backend = ScriptedBackend(says("x"))
    response = make_client(backend).post(URL, json={**QUESTION, **change})
    assert (response.status_code, response.json["error"]["param"]) == (400, param)
    assert not backend.enqueued


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("functions", [TIME["function"]], ", except for [], which asks for nothing; use tools"),
        ("function_call", {"name": "f"}, '"auto", which ask for nothing; use tool_choice'),
        ("chat_template", "x", " is not supported: the model's own is used"),
    ],
)
def test_what_is_refused_is_told_with_what_to_use_instead(make_client, name, value, said):
    response = make_client(ScriptedBackend()).post(URL, json={**QUESTION, name: value})
    assert response.json["error"]["message"].startswith(f"{name} is not supported")
    assert response.json["error"]["message"].endswith(said)


FUNCTION = {"name": "f", "arguments": "{}"}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "tool", "content": "x"}, "messages.0.tool_call_id"),
        ({"role": "user", "content": "x", "tool_call_id": "y"}, "messages.0.tool_call_id"),
        (
            {"role": "user", "content": "x", "reasoning_content": "y"},
            "messages.0.reasoning_content",
        ),
        ({"role": "user"}, "messages.0.content"),
        ({"role": "system", "content": None}, "messages.0.content"),
        (
            {"role": "user", "content": "x", "tool_calls": [{"id": "1", "function": FUNCTION}]},
            "messages.0.tool_calls",
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "messages.0.content.0",
        ),
    ],
)
def test_a_message_that_its_role_cannot_have_is_refused(make_client, message, param):
    response = make_client(ScriptedBackend()).post(URL, json={"messages": [message]})
    error = response.json["error"]
    assert (response.status_code, error["param"]) == (400, param)
    is_missing = message.get(param.split(".")[2]) is None
    expected = "missing_required_parameter" if is_missing else "invalid_value"
    assert error["code"] == expected


def test_bare_text_has_no_room_for_calls(make_client):
    client = make_client(ScriptedBackend(says("x")))
    headers = {"Accept": "text/plain"}
    asked = {**QUESTION, "stream": True}
    for choice in ("auto", "required"):
        response = client.post(URL, json={**asked, "tool_choice": choice}, headers=headers)
        assert (response.status_code, response.json["error"]["param"]) == (400, "tools")
    response = client.post(URL, json={**asked, "tool_choice": "none"}, headers=headers)
    assert (response.status_code, response.text) == (200, "x")


def test_a_stream_opens_with_null_content_where_the_model_may_call(make_client):
    client = make_client(ScriptedBackend(says("x")))
    opened = []
    for choice in ("auto", "none"):
        asked = {**QUESTION, "stream": True, "tool_choice": choice}
        opened.append(frames(client.post(URL, json=asked))[0]["choices"][0]["delta"]["content"])
    assert opened == [None, ""]


def test_names_of_tools_with_other_characters_go_there_and_back(make_client):
    call = '<tool_call>{"name": "git_log_all_v2", "arguments": {}}</tool_call>'
    backend = ScriptedBackend(says(call))
    client = make_client(backend)
    tools = [{"type": "function", "function": {"name": "git:log/all@v2"}}]
    body = {**HELLO, "tools": tools}
    [choice] = client.post(URL, json=body).json["choices"]
    [called] = choice["message"]["tool_calls"]
    assert called["function"]["name"] == "git:log/all@v2"
    assert "git_log_all_v2" in prompt_of(client, backend)
    messages = [*HELLO["messages"], choice["message"], *HELLO["messages"]]
    client.post(URL, json={**body, "messages": messages})
    assert prompt_of(client, backend).count("git_log_all_v2") == 2
    assert "git:log" not in prompt_of(client, backend)
    twins = [*tools, {"type": "function", "function": {"name": "git_log:all@v2"}}]
    response = client.post(URL, json={**body, "tools": twins})
    assert response.json["error"]["param"] == "tools"


CALLED = "x{% if tools %}{% endif %}{% set called = messages[1].tool_calls[0].function.arguments %}"


@pytest.mark.parametrize("arguments", ["", '{"city": "Ro', "[1]"])
@pytest.mark.parametrize(
    ("template", "empty"),
    [
        (None, '"arguments": {}}'),
        (CALLED + "{{ called | tojson }}", "{}"),
        (CALLED + "{% for name, value in called.items() %}{{ value }}{% endfor %}", ""),
    ],
    ids=["none for tools", "of JSON", "of an object"],
)
def test_a_call_that_was_cut_off_is_taken_back(
    make_client, with_template, arguments, template, empty
):
    backend = ScriptedBackend(says("x"))
    path = {} if template is None else {"path": with_template(template)}
    client = make_client(backend, tool_format="hermes", **path)
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [*HELLO["messages"], {"role": "assistant", "tool_calls": [call]}]
    messages.append({"role": "tool", "tool_call_id": "1", "content": "x"})
    response = client.post(URL, json={"messages": messages})
    assert response.status_code == 200, response.text
    prompt = prompt_of(client, backend).replace('\\"', '"')
    assert (arguments or empty) in prompt


def test_arguments_that_nest_too_deep_for_a_parser_are_taken_back_as_text(make_client):
    backend = ScriptedBackend(says("x"))
    client = make_client(backend)
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "[" * 1200}}
    messages = [*HELLO["messages"], {"role": "assistant", "tool_calls": [call]}]
    messages.append({"role": "tool", "tool_call_id": "1", "content": "x"})
    response = client.post(URL, json={"messages": messages})
    assert response.status_code == 200, response.text
    assert "[" * 1200 in prompt_of(client, backend)


def test_the_setting_of_the_calls_format_goes_before_what_the_template_shows(
    make_client, with_template
):
    path = with_template("{{ tools }} <tool_call>{{ messages[0]['content'] }}")
    said = says('[TOOL_CALLS][{"name": "get_time", "arguments": {}}]')
    client = make_client(ScriptedBackend(said), path=path, tool_format="mistral")
    [choice] = client.post(URL, json=QUESTION).json["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_time"
