"""Tools and their calls on POST /v1/responses, over a scripted backend."""

import pytest

from switchyard.app.formats.responses import parse
from tests.app.conftest import prompt_of
from tests.app.responses import HELLO, TOOL, URL, events
from tests.scripted import ScriptedBackend, says

pytestmark = pytest.mark.both_ways

ADD = {"type": "function", "name": "add"}


@pytest.mark.parameter("tools[].strict", "tool_choice", "/v1/responses")
@pytest.mark.parametrize(
    ("choice", "must_call", "only"),
    [
        ("auto", False, None),
        ("required", True, None),
        (ADD, True, "add"),
        ({"type": "allowed_tools", "mode": "required", "tools": [ADD]}, True, None),
    ],
)
def test_a_choice_of_tools_is_for_the_chat_to_enforce(choice, must_call, only):
    request = {**HELLO, "tools": [{**TOOL, "strict": True}], "tool_choice": choice}
    asked = parse.response(request)
    chat = asked.chat(asked.messages())
    assert chat.tools[0].function.strict is True
    assert (chat.offer.must_call, chat.offer.only) == (must_call, only)


@pytest.mark.parameter("parallel_tool_calls", "/v1/responses")
def test_calls_that_must_not_be_parallel_are_one(make_client):
    call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    client = make_client(ScriptedBackend(says(call, call)))
    request = {"input": "Hello", "tools": [TOOL]}
    for is_parallel, num_calls in ((True, 2), (False, 1)):
        body = client.post(URL, json={**request, "parallel_tool_calls": is_parallel}).json
        assert len(body["output"]) == num_calls


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "status", "item_status"),
    [
        ('<tool_call>{"name": "add", "arguments": {"a": 7}', "completed", "completed"),
        ('<tool_call>{"name": "add", "arguments": {"a": 7', "cancelled", "incomplete"),
    ],
)
def test_an_answer_that_is_ended_with_its_only_call_is_not_an_operators_end(
    make_client, text, status, item_status, stream
):
    client = make_client(ScriptedBackend(says(text, reason="cancelled")))
    request = {"input": "Hello", "tools": [TOOL], "parallel_tool_calls": False}
    response = client.post(URL, json={**request, "stream": stream})
    body = events(response)[-1]["response"] if stream else response.json
    assert body["status"] == status and body["output"][0]["status"] == item_status
    assert (body["completed_at"] is None) == (status == "cancelled")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("arguments", "more", "status", "details", "item_status"),
    [
        ('{"a": 7', {"stop_reason": "}"}, "incomplete", None, "incomplete"),
        ('{"a": 7', {"reason": "length"}, "incomplete", "max_output_tokens", "incomplete"),
        ('{"a": 7}', {"reason": "length"}, "incomplete", "max_output_tokens", "completed"),
        ('{"a": 7}', {"stop_reason": "</tool_call>"}, "completed", None, "completed"),
    ],
)
def test_a_call_that_is_cut_off_is_incomplete(
    make_client, arguments, more, status, details, item_status, stream
):
    text = '<tool_call>{"name": "add", "arguments": ' + arguments
    client = make_client(ScriptedBackend(says(text, **more)))
    response = client.post(URL, json={"input": "Hello", "tools": [TOOL], "stream": stream})
    body = response.json
    if stream:
        last = events(response)[-1]
        body = last["response"]
        assert last["type"] == f"response.{status}"
    [call] = body["output"]
    assert (call["arguments"], call["status"]) == (arguments, item_status)
    assert body["status"] == status
    assert body["incomplete_details"] == (details and {"reason": details})


def test_the_last_item_alone_is_incomplete_in_a_stream_too(make_client):
    text = 'Sure.<tool_call>{"name": "add", "arguments": {"a": 7'
    client = make_client(ScriptedBackend(says(text, reason="length")))
    bodies = events(client.post(URL, json={"input": "Hello", "tools": [TOOL], "stream": True}))
    done = [b["item"] for b in bodies if b["type"] == "response.output_item.done"]
    assert [item["status"] for item in done] == ["completed", "incomplete"]
    assert bodies[-1]["response"]["output"] == done


@pytest.mark.parameter("tools", "tools[].type", "tools[].defer_loading", "/v1/responses")
def test_functions_of_a_namespace_are_offered_and_hosted_tools_are_not(make_client):
    call = '<tool_call>{"name": "math__add", "arguments": {}}</tool_call>'
    client = make_client(ScriptedBackend(says(call)))
    tools = [
        {"type": "namespace", "name": "math", "description": "Sums.", "tools": [TOOL]},
        {"type": "web_search", "external_web_access": False},
        {**TOOL, "name": "later", "defer_loading": True},
    ]
    response = client.post(URL, json={**HELLO, "tools": tools})
    assert response.headers["X-Switchyard-Ignored"] == "tools[1],tools[2]"
    assert response.json["tools"] == tools
    [item] = response.json["output"]
    assert (item["type"], item["name"]) == ("function_call", "math__add")
    prompt = prompt_of(client)
    assert '"math__add"' in prompt and "later" not in prompt and "web_search" not in prompt
    choice = {"type": "web_search"}
    refused = client.post(URL, json={**HELLO, "tools": tools, "tool_choice": choice})
    assert refused.json["error"]["param"].startswith("tool_choice")
