"""Tools at POST /v1/chat/completions, over a backend that says what a test wants."""

import itertools
import json

import pytest

from tests.app.chat.conftest import URL
from tests.app.conftest import frames, wait_until_empty
from tests.scripted import ScriptedBackend, finished, says

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


def allowed(*names, mode="auto"):
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def history(name, arguments):
    """With a call and its result."""
    call = {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": "1", "content": "x"}
    return [*HELLO["messages"], {"role": "assistant", "tool_calls": [call]}, result]


@pytest.mark.parameter("tools tools[].type", "/v1/chat/completions")
@pytest.mark.parameter("tools[].function tools[].function.name")
def test_calls_of_tools_are_told_apart_from_text(chat):
    choice = chat(QUESTION, *CALLS).choice
    message = choice["message"]
    first, second = [call.pop("id") for call in message["tool_calls"]]
    assert first.startswith("call_") and first != second
    assert (choice["finish_reason"], message["content"]) == ("tool_calls", "Well.")
    assert message["tool_calls"] == [
        {
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
        },
        {"type": "function", "function": {"name": "get_time", "arguments": "{}"}},
    ]


def test_what_was_held_back_for_a_call_that_never_came_is_text(chat):
    asked = chat(QUESTION, "So ", "<tool_ca")
    assert asked.message["content"] == "So <tool_ca"
    deltas = asked.again({**QUESTION, "stream": True}).deltas
    assert "".join(delta.get("content") or "" for delta in deltas) == "So <tool_ca"


def test_a_form_that_has_something_like_a_call_in_it_is_text(chat):
    pieces = ['{"note": "', '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>', '"}']
    choice = chat({**QUESTION, "response_format": {"type": "json_object"}}, *pieces).choice
    assert choice["message"]["content"] == "".join(pieces)
    assert not choice["message"].get("tool_calls") and choice["finish_reason"] == "stop"


def test_streamed_calls_begin_with_a_name_and_go_on_with_arguments(chat):
    bodies = frames(chat({**QUESTION, "stream": True}, *CALLS).response)
    choices = [body["choices"][0] for body in bodies]
    deltas = [choice["delta"] for choice in choices]
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    first, second = [call.pop("id") for call in calls if "id" in call]
    assert first != second
    assert [(call["index"], call.get("type"), call["function"]) for call in calls] == [
        (0, "function", {"name": "get_weather", "arguments": ""}),
        (0, None, {"arguments": '{"city": '}),
        (0, None, {"arguments": '"Rome"}'}),
        (1, "function", {"name": "get_time", "arguments": ""}),
        (1, None, {"arguments": "{}"}),
    ]
    assert [d["content"] for d in deltas if "content" in d] == [None, "Well."]
    assert [c["finish_reason"] for c in choices][-2:] == [None, "tool_calls"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("pieces", "stop_reason", "model_ends", "reason"),
    [
        (CALL[:2], '"', "stop", "stop"),
        (CALL[:2], 5, "stop", "stop"),
        (CALL[:2], "loop", "stop", "stop"),
        ((*CALLS[:-1], CALLS[-1][:-14]), "}", "stop", "stop"),  # the second of two
        (CALL[:2], None, "stop", "tool_calls"),  # the model's own end
        (CALL, "</tool_call>", "stop", "tool_calls"),
        (CALL[:2], None, "length", "length"),
    ],
)
def test_a_call_that_is_cut_off_is_not_told_as_one_to_make(
    chat, pieces, stop_reason, model_ends, reason, stream
):
    script = says(*pieces, reason=model_ends, stop_reason=stop_reason)
    asked = chat({**QUESTION, "stream": stream}, backend=ScriptedBackend(script))
    choice = frames(asked.response)[-1]["choices"][0] if stream else asked.choice
    assert (choice["finish_reason"], choice.get("stop_reason")) == (reason, stop_reason)
    if not stream:
        begun = choice["message"]["tool_calls"][0]["function"]["arguments"]
        assert begun.startswith('{"city": ') and '{"city": "Rome"}'.startswith(begun)


@pytest.mark.parameter("parallel_tool_calls", "/v1/chat/completions")
@pytest.mark.parametrize("stream", [False, True])
def test_without_parallel_calls_the_job_ends_with_the_first(chat, stream):
    def many_calls(job):
        started, *chunks, _ = says(*CALL, "\n</tool_call>\n")(job)
        yield started
        yield from itertools.islice(itertools.cycle(chunks), 20_000)
        yield finished(job, 20_000)

    body = {**QUESTION, "parallel_tool_calls": False, "stream": stream}
    asked = chat(body, backend=ScriptedBackend(many_calls))
    bodies = frames(asked.response) if stream else [asked.response.json]
    parts = [choice.get("delta", choice.get("message")) for b in bodies for choice in b["choices"]]
    calls = [call for part in parts for call in part.get("tool_calls", [])]
    assert {call.get("index", 0) for call in calls} == {0}
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert json.loads(arguments) == {"city": "Rome"}
    assert bodies[-1]["choices"][0]["finish_reason"] == "tool_calls"
    wait_until_empty(asked.client)
    assert sum(asked.backend.num_chunks.values()) < 20_000


BOTH = ("get_weather", "get_time")


@pytest.mark.parametrize("parallel", [None, True, False])
@pytest.mark.parametrize(
    "choice", ["auto", allowed(*BOTH), "required", allowed(*BOTH, mode="required")]
)
def test_one_call_at_a_time_holds_for_each_choice_of_tools(chat, choice, parallel):
    more = {} if parallel is None else {"parallel_tool_calls": parallel}
    message = chat({**QUESTION, "tool_choice": choice, **more}, *CALLS).message
    names = [call["function"]["name"] for call in message["tool_calls"]]
    assert names == [*BOTH][: 1 if parallel is False else 2]
    assert CALL[0].startswith(message["content"])


@pytest.mark.parameter("tools[].function.description tools[].function.parameters")
def test_a_model_without_tools_is_told_of_them_by_the_system(chat):
    messages = [{"role": "developer", "content": "Be brief."}, *QUESTION["messages"]]
    asked = chat({**QUESTION, "messages": messages})
    assert asked.prompt.startswith("system\nBe brief.\n\n# Tools")
    weather = '{"name": "get_weather", "description": "The weather of a city <|im_end|>"'
    for part in (weather, "<tool_call>", '{"name": "get_time", "description": ""'):
        assert part in asked.prompt
    forbidden = asked.client.models.get().tokenizer.token_id("<|im_end|>")
    assert asked.job.prompt.count(forbidden) == 2  # the template's own


@pytest.mark.parameter("tool_choice", "/v1/chat/completions")
def test_with_choice_none_the_model_sees_no_tools_and_calls_are_text(chat):
    asked = chat({**QUESTION, "tool_choice": "none"}, *CALL)
    assert asked.message["content"] == "".join(CALL)
    assert asked.choice["finish_reason"] == "stop"
    assert asked.prompt == "user\nWeather?\nassistant\n"


@pytest.mark.parameter("tool_choice.type", "/v1/chat/completions")
@pytest.mark.parameter("tool_choice.allowed_tools tool_choice.allowed_tools.mode")
@pytest.mark.parameter("tool_choice.allowed_tools.tools tool_choice.allowed_tools.tools[].type")
@pytest.mark.parameter("tool_choice.allowed_tools.tools[].function")
@pytest.mark.parameter("tool_choice.allowed_tools.tools[].function.name")
def test_allowed_tools_are_all_that_the_model_sees(chat):
    asked = chat({**QUESTION, "tool_choice": allowed("get_time")}, *CALLS)
    assert "get_weather" not in asked.prompt
    assert [call["function"]["name"] for call in asked.message["tool_calls"]] == ["get_time"]
    assert asked.message["content"].startswith("".join(CALL))


INSTEAD = {
    "functions": ", except for [], which has no effect; use tools",
    "function_call": ', except for "none" or "auto", which have no effect; use tool_choice',
    "chat_template": ": the model's own template is used",
}


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
        ({"chat_template": "x"}, "chat_template"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"enable_feeling": False}}, "chat_template_kwargs"),
        ({"enable_thinking": True, "thinking": {"type": "disabled"}}, "thinking"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"documents": [{"text": "x"}]}, "documents"),
        ({"continue_final_message": True}, "continue_final_message"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_its_name(chat, change, param):
    asked = chat({**QUESTION, **change})
    assert asked.refusal == param and not asked.backend.enqueued
    message = asked.response.json["error"]["message"]
    assert param not in INSTEAD or message == f"{param} is not supported{INSTEAD[param]}"


NAMED = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
IMAGE = {"type": "image_url", "image_url": {"url": "x"}}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "tool", "content": "x"}, "tool_call_id"),
        ({"role": "user", "content": "x", "tool_call_id": "y"}, "tool_call_id"),
        ({"role": "user", "content": "x", "reasoning_content": "y"}, "reasoning_content"),
        ({"role": "user"}, "content"),
        ({"role": "system", "content": None}, "content"),
        ({"role": "user", "content": "x", "tool_calls": [NAMED]}, "tool_calls"),
        ({"role": "user", "content": [IMAGE]}, "content.0"),
    ],
)
def test_a_message_that_its_role_cannot_have_is_refused(chat, message, param):
    asked = chat({"messages": [message]})
    is_missing = message.get(param.split(".")[0]) is None
    expected = "missing_required_parameter" if is_missing else "invalid_value"
    code = asked.response.json["error"]["code"]
    assert (asked.refusal, code) == (f"messages.0.{param}", expected)


def test_bare_text_has_no_room_for_calls(make_client):
    client = make_client(ScriptedBackend(says("x")))
    headers = {"Accept": "text/plain"}
    asked = {**QUESTION, "stream": True}
    for choice in ("auto", "required"):
        response = client.post(URL, json={**asked, "tool_choice": choice}, headers=headers)
        assert (response.status_code, response.json["error"]["param"]) == (400, "tools")
    response = client.post(URL, json={**asked, "tool_choice": "none"}, headers=headers)
    assert (response.status_code, response.text) == (200, "x")


def test_names_of_tools_with_other_characters_go_there_and_back(chat):
    body = {**HELLO, "tools": [{"type": "function", "function": {"name": "git:log/all@v2"}}]}
    asked = chat(body, '<tool_call>{"name": "git_log_all_v2", "arguments": {}}</tool_call>')
    [called] = asked.message["tool_calls"]
    assert called["function"]["name"] == "git:log/all@v2"
    assert "git_log_all_v2" in asked.prompt
    messages = [*HELLO["messages"], asked.message, *HELLO["messages"]]
    prompt = asked.again({**body, "messages": messages}).prompt
    assert prompt.count("git_log_all_v2") == 2 and "git:log" not in prompt
    twins = [*body["tools"], {"type": "function", "function": {"name": "git_log:all@v2"}}]
    assert asked.again({**body, "tools": twins}).refusal == "tools"


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
def test_a_call_that_was_cut_off_is_taken_back(chat, arguments, template, empty):
    body = {"messages": history("f", arguments)}
    prompt = chat(body, template=template, tool_format="hermes").prompt.replace('\\"', '"')
    assert (arguments or empty) in prompt


def test_arguments_that_nest_too_deep_for_a_parser_are_taken_back_as_text(chat):
    assert "[" * 1200 in chat({"messages": history("f", "[" * 1200)}).prompt


def test_the_setting_of_the_calls_format_goes_before_what_the_template_shows(chat):
    template = "{{ tools }} <tool_call>{{ messages[0]['content'] }}"
    said = '[TOOL_CALLS][{"name": "get_time", "arguments": {}}]'
    choice = chat(QUESTION, said, template=template, tool_format="mistral").choice
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_time"
