"""Blocks of Anthropic's API: thoughts, texts, calls of tools."""

import pytest

from switchyard.app.formats.anthropic import parse
from tests.app.anthropic.asked import CALL, HELLO, THINKS_AND_CALLS, TOOLS, USER, text, turn
from tests.app.conftest import named_events
from tests.scripted import ScriptedBackend, says

pytestmark = pytest.mark.both_ways
THINKS = {"type": "thinking", "thinking": "Hm.", "signature": "any"}


def result(identifier, content):
    return {"type": "tool_result", "tool_use_id": identifier, "content": content}


def test_thoughts_text_and_calls_are_blocks(message):
    body = message({**HELLO, "tools": TOOLS}, *THINKS_AND_CALLS).response.json
    thinking, _, call = body["content"]
    assert thinking.pop("signature") and call.pop("id")
    assert body["content"] == [
        {"type": "thinking", "thinking": "One more."},
        text("Sure."),
        {"type": "tool_use", "name": "add", "input": {"a": 1, "b": None}},
    ]
    assert (body["stop_reason"], body["stop_sequence"]) == ("tool_use", None)
    assert body["usage"]["output_tokens_details"] == {"thinking_tokens": 4}


def test_streamed_blocks_follow_each_other(message):
    asked = message({**HELLO, "tools": TOOLS, "stream": True}, *THINKS_AND_CALLS)
    _, *bodies, ending, _ = named_events(asked.response)
    assert bodies[3]["delta"].pop("signature") and bodies[8]["content_block"].pop("id")
    thinking = {"type": "thinking", "thinking": "", "signature": ""}
    told = [
        (0, "start", thinking),
        (0, "delta", {"type": "thinking_delta", "thinking": "One"}),
        (0, "delta", {"type": "thinking_delta", "thinking": " more."}),
        (0, "delta", {"type": "signature_delta"}),
        (0, "stop", None),
        (1, "start", text("")),
        (1, "delta", {"type": "text_delta", "text": "Sure."}),
        (1, "stop", None),
        (2, "start", {"type": "tool_use", "name": "add", "input": {}}),
        (2, "delta", {"type": "input_json_delta", "partial_json": '{"a": 1,'}),
        (2, "delta", {"type": "input_json_delta", "partial_json": ' "b": null}'}),
        (2, "stop", None),
    ]
    names = {"start": "content_block", "delta": "delta"}
    assert bodies == [
        {"type": f"content_block_{kind}", "index": index} | ({names[kind]: part} if part else {})
        for index, kind, part in told
    ]
    assert ending["delta"]["stop_reason"] == "tool_use"


def test_the_input_of_a_call_that_the_limit_cuts_off_is_what_there_is(message):
    script = says('<tool_call>{"name": "add", "arguments": {"a": 1, "b": "tw', reason="length")
    body = message({**HELLO, "tools": TOOLS}, backend=ScriptedBackend(script)).response.json
    assert body["content"][0]["input"] == {"a": 1, "b": "tw"}
    assert body["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("arguments", "stop", "ending"),
    [('{"a": 7', "}", ("stop_sequence", "}")), ('{"a": 7}', "</tool_call>", ("tool_use", None))],
)
def test_a_stop_sequence_ends_a_message_unless_its_calls_are_complete(
    message, arguments, stop, ending, stream
):
    script = says('<tool_call>{"name": "add", "arguments": ' + arguments, stop_reason=stop)
    request = {**HELLO, "tools": TOOLS, "stop_sequences": [stop], "stream": stream}
    response = message(request, backend=ScriptedBackend(script)).response
    if stream:
        *_, piece, _, end, _ = named_events(response)
        assert piece["delta"]["partial_json"] == arguments
        end = end["delta"]
    else:
        end = response.json
        assert end["content"][0]["input"] == {"a": 7}
    assert (end["stop_reason"], end["stop_sequence"]) == ending


@pytest.mark.parameter("tools tools[].type", "/v1/messages")
@pytest.mark.parameter("tools[].name tools[].description tools[].input_schema")
def test_tools_and_what_they_gave_are_in_the_prompt(message):
    failed = {**result("call_2", [text("no such thing")]), "is_error": True}
    messages = [
        *USER,
        turn("assistant", THINKS, text("Sure."), {**CALL, "caller": {"type": "direct"}}),
        turn("user", result("call_1", "three"), failed, text("And now?")),
    ]
    prompt = message({**HELLO, "messages": messages, "tools": TOOLS}).prompt
    assert '"description": "Adds."' in prompt and '"default": null' in prompt
    parts = ("Sure.", '{"a": 1, "b": null}', "three", "Error: no such thing", "And now?")
    places = [prompt.index(part) for part in parts]
    assert places == sorted(places)


@pytest.mark.parameter("tool_choice tool_choice.type", "/v1/messages")
@pytest.mark.parameter("tool_choice.disable_parallel_tool_use")
@pytest.mark.parametrize(
    ("choice", "num_calls", "is_shown"),
    [
        (None, 2, True),
        ({"type": "auto"}, 2, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, 1, True),
        ({"type": "none"}, 0, False),
    ],
)
def test_a_choice_of_tools_is_kept(message, choice, num_calls, is_shown):
    call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    asked = message({**HELLO, "tools": TOOLS, "tool_choice": choice}, call, call)
    kinds = [block["type"] for block in asked.response.json["content"]]
    assert kinds.count("tool_use") == num_calls
    assert ("Adds." in asked.prompt) == is_shown


def test_thoughts_that_are_sent_back_are_for_the_template(message):
    answer = turn("assistant", THINKS, {**THINKS, "thinking": "So."}, text("Hi"))
    body = {**HELLO, "messages": [*USER, answer, *USER]}
    assert message(body, template="{{ messages[1].reasoning_content }}").prompt == "Hm.\nSo."


@pytest.mark.parameter("tools[].strict", "/v1/messages")
@pytest.mark.parameter("tool_choice.name")
@pytest.mark.parametrize(
    ("choice", "must_call", "only"),
    [({"type": "any"}, True, None), ({"type": "tool", "name": "sub"}, True, "sub")],
)
def test_what_must_be_called_is_for_the_chat_to_enforce(choice, must_call, only):
    tools = [TOOLS[0], {**TOOLS[1], "strict": True}]
    chat = parse.message({**HELLO, "tools": tools, "tool_choice": choice}).chat((), False)
    assert [tool.function.strict for tool in chat.tools] == [None, True]
    assert (chat.offer.must_call, chat.offer.only) == (must_call, only)


@pytest.mark.parameter("tools tools[].defer_loading tools[].allowed_callers", "/v1/messages")
@pytest.mark.parameter("tools[].type", "/v1/messages")
def test_tools_that_the_model_is_not_shown_are_told(message):
    schema = {"type": "object"}
    tools = [
        TOOLS[0],
        {"name": "later", "input_schema": schema, "defer_loading": True},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"name": "coded", "input_schema": schema, "allowed_callers": ["code_execution_20250825"]},
    ]
    prompts = []
    for content, told in [
        ([], "tools[1],tools[2],tools[3]"),
        ([{"type": "tool_reference", "tool_name": "later"}], "tools[2],tools[3]"),
    ]:
        messages = [*USER, turn("user", result("a", content))]
        asked = message({**HELLO, "messages": messages, "tools": tools})
        assert asked.ignored == told
        prompts.append(asked.prompt)
    first, second = prompts
    assert '"add"' in first and '"later"' not in first
    assert '"later"' in second and "web_search" not in second and "coded" not in second
    choice = {"type": "tool", "name": "web_search"}
    asked = message({**HELLO, "tools": tools, "tool_choice": choice})
    assert asked.response.status_code == 400


def test_images_of_tools_are_named_to_the_model(message):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "a"}}
    messages = [*USER, turn("user", result("a", [image]))]
    asked = message({**HELLO, "messages": messages})
    assert asked.ignored == "messages.content.image"
    assert "an image" in asked.prompt
