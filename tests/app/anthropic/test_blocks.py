"""Blocks of Anthropic's API: thoughts, texts, calls of tools."""

import pytest

from switchyard.app.formats.anthropic import parse
from tests.app.anthropic.asked import CALL, HELLO, THINKS_AND_CALLS, TOOLS, URL, USER
from tests.app.conftest import named_events, prompt_of
from tests.scripted import ScriptedBackend, says

pytestmark = pytest.mark.both_ways


def test_thoughts_text_and_calls_are_blocks(make_client):
    client = make_client(ScriptedBackend(THINKS_AND_CALLS))
    body = client.post(URL, json={**HELLO, "tools": TOOLS}).json
    thinking, text, call = body["content"]
    assert thinking.pop("signature")
    assert thinking == {"type": "thinking", "thinking": "One more."}
    assert text == {"type": "text", "text": "Sure."}
    assert call.pop("id")
    assert call == {"type": "tool_use", "name": "add", "input": {"a": 1, "b": None}}
    assert (body["stop_reason"], body["stop_sequence"]) == ("tool_use", None)
    assert body["usage"]["output_tokens_details"] == {"thinking_tokens": 4}


def test_streamed_blocks_follow_each_other(make_client):
    client = make_client(ScriptedBackend(THINKS_AND_CALLS))
    bodies = named_events(client.post(URL, json={**HELLO, "tools": TOOLS, "stream": True}))
    told = []
    for body in bodies[1:-2]:
        told.append((body["index"], body["type"].removeprefix("content_block_")))
        if body["type"] == "content_block_start":
            block = body["content_block"]
            told[-1] += (block["type"], block.get("input"), block.get("name"))
        elif body["type"] == "content_block_delta":
            told[-1] += tuple(body["delta"].values())[:2]
    [signature] = [d[3] for d in told if d[2:3] == ("signature_delta",)]
    assert signature
    assert told == [
        (0, "start", "thinking", None, None),
        (0, "delta", "thinking_delta", "One"),
        (0, "delta", "thinking_delta", " more."),
        (0, "delta", "signature_delta", signature),
        (0, "stop"),
        (1, "start", "text", None, None),
        (1, "delta", "text_delta", "Sure."),
        (1, "stop"),
        (2, "start", "tool_use", {}, "add"),
        (2, "delta", "input_json_delta", '{"a": 1,'),
        (2, "delta", "input_json_delta", ' "b": null}'),
        (2, "stop"),
    ]
    assert bodies[1]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert bodies[-2]["delta"]["stop_reason"] == "tool_use"


def test_the_input_of_a_call_that_the_limit_cuts_off_is_what_there_is(make_client):
    script = says('<tool_call>{"name": "add", "arguments": {"a": 1, "b": "tw', reason="length")
    body = make_client(ScriptedBackend(script)).post(URL, json={**HELLO, "tools": TOOLS}).json
    assert body["content"][0]["input"] == {"a": 1, "b": "tw"}
    assert body["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("arguments", "stop", "ending"),
    [('{"a": 7', "}", ("stop_sequence", "}")), ('{"a": 7}', "</tool_call>", ("tool_use", None))],
)
def test_a_stop_sequence_ends_a_message_unless_its_calls_are_complete(
    make_client, arguments, stop, ending, stream
):
    text = '<tool_call>{"name": "add", "arguments": ' + arguments
    client = make_client(ScriptedBackend(says(text, stop_reason=stop)))
    request = {**HELLO, "tools": TOOLS, "stop_sequences": [stop], "stream": stream}
    response = client.post(URL, json=request)
    if stream:
        *_, piece, _, end, _ = named_events(response)
        assert piece["delta"]["partial_json"] == arguments
        end = end["delta"]
    else:
        end = response.json
        assert end["content"][0]["input"] == {"a": 7}
    assert (end["stop_reason"], end["stop_sequence"]) == ending


@pytest.mark.parameter("tools", "/v1/messages")
@pytest.mark.parameter("tools[].type", "/v1/messages")
@pytest.mark.parameter("tools[].name")
@pytest.mark.parameter("tools[].description")
@pytest.mark.parameter("tools[].input_schema")
def test_tools_and_what_they_gave_are_in_the_prompt(make_client):
    backend = ScriptedBackend()
    client = make_client(backend)
    messages = [
        *USER,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "any"},
                {"type": "text", "text": "Sure."},
                {**CALL, "caller": {"type": "direct"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": "three"},
                {
                    "type": "tool_result",
                    "tool_use_id": "call_2",
                    "content": [{"type": "text", "text": "no such thing"}],
                    "is_error": True,
                },
                {"type": "text", "text": "And now?"},
            ],
        },
    ]
    client.post(URL, json={**HELLO, "messages": messages, "tools": TOOLS})
    text = prompt_of(client, backend)
    assert '"description": "Adds."' in text and '"default": null' in text
    assert text.index("Sure.") < text.index('{"a": 1, "b": null}') < text.index("three")
    assert text.index("three") < text.index("Error: no such thing") < text.index("And now?")


@pytest.mark.parameter("tool_choice", "/v1/messages")
@pytest.mark.parameter("tool_choice.type", "/v1/messages")
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
def test_a_choice_of_tools_is_kept(make_client, choice, num_calls, is_shown):
    call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    backend = ScriptedBackend(says(call, call))
    client = make_client(backend)
    body = client.post(URL, json={**HELLO, "tools": TOOLS, "tool_choice": choice}).json
    assert [block["type"] for block in body["content"]].count("tool_use") == num_calls
    assert ("Adds." in prompt_of(client, backend)) == is_shown


def test_thoughts_that_are_sent_back_are_for_the_template(make_client, with_template):
    backend = ScriptedBackend()
    client = make_client(backend, path=with_template("{{ messages[1].reasoning_content }}"))
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "any"}
    more = {**thinking, "thinking": "So."}
    answer = {"role": "assistant", "content": [thinking, more, {"type": "text", "text": "Hi"}]}
    client.post(URL, json={**HELLO, "messages": [*USER, answer, *USER]})
    assert prompt_of(client, backend) == "Hm.\nSo."


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


@pytest.mark.parameter("tools", "/v1/messages")
@pytest.mark.parameter("tools[].defer_loading", "/v1/messages")
@pytest.mark.parameter("tools[].allowed_callers", "/v1/messages")
@pytest.mark.parameter("tools[].type", "/v1/messages")
def test_tools_that_the_model_is_not_shown_are_told(make_client):
    backend = ScriptedBackend()
    client = make_client(backend)
    schema = {"type": "object"}
    tools = [
        TOOLS[0],
        {"name": "later", "input_schema": schema, "defer_loading": True},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"name": "coded", "input_schema": schema, "allowed_callers": ["code_execution_20250825"]},
    ]
    found = {"type": "tool_result", "tool_use_id": "a", "content": []}
    for content, told in [
        ([], "tools[1],tools[2],tools[3]"),
        ([{"type": "tool_reference", "tool_name": "later"}], "tools[2],tools[3]"),
    ]:
        messages = [*USER, {"role": "user", "content": [{**found, "content": content}]}]
        response = client.post(URL, json={**HELLO, "messages": messages, "tools": tools})
        assert response.headers["X-Switchyard-Ignored"] == told
    tokenizer = client.models.get().tokenizer
    first, second = (tokenizer.decode(job.prompt) for job in backend.enqueued)
    assert '"add"' in first and '"later"' not in first
    assert '"later"' in second and "web_search" not in second and "coded" not in second
    choice = {"type": "tool", "name": "web_search"}
    refused = client.post(URL, json={**HELLO, "tools": tools, "tool_choice": choice})
    assert refused.status_code == 400


def test_images_of_tools_are_named_to_the_model(make_client):
    backend = ScriptedBackend()
    client = make_client(backend)
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "a"}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [image]}
    messages = [*USER, {"role": "user", "content": [result]}]
    response = client.post(URL, json={**HELLO, "messages": messages})
    assert response.headers["X-Switchyard-Ignored"] == "messages.content.image"
    assert "an image" in prompt_of(client, backend)
