"""POST /v1/responses over a scripted backend."""

import json

import pytest

from switchyard.app.formats.responses import items
from switchyard.engine.messages import Finished, Started
from tests.app.conftest import fails, prompt_of
from tests.app.refused import error_of
from tests.app.responses import HELLO, TOOL, URL, events
from tests.scripted import ScriptedBackend, says

pytestmark = pytest.mark.both_ways

THINKS_AND_CALLS = says(
    "<think>",
    "Hm.",
    "</think>",
    "Sure.",
    '<tool_call>{"name": "add", "arguments": {"a": 1,',
    ' "b": 2}}</tool_call>',
)


def test_each_of_two_answers_in_a_row_reaches_the_template(client):
    """As agents send them: a comment, then the answer."""
    history = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "the comment", "phase": "commentary"},
        {"role": "assistant", "content": "the answer", "phase": "final_answer"},
        {"role": "user", "content": "v"},
    ]
    assert client.post(URL, json={**HELLO, "input": history}).status_code == 200
    text = prompt_of(client)
    assert 0 < text.index("the comment") < text.index("the answer")
    assert text.count("assistant\n") == 3  # those two, and the one to come


@pytest.mark.parameter("max_output_tokens")
def test_a_response_has_the_shape_of_the_api(client):
    body = client.post(URL, json=HELLO).json
    assert body["id"].startswith("resp_") and body["object"] == "response"
    [item] = body["output"]
    assert item.pop("id").startswith("msg_")
    content = [{"type": "output_text", "text": "0 1 ", "annotations": [], "logprobs": []}]
    message = {"type": "message", "role": "assistant", "status": "incomplete"}
    assert item == {**message, "content": content}
    assert (body["status"], body["error"]) == ("incomplete", None)
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["max_output_tokens"] == 2 and body["store"] is True
    usage = body["usage"]
    assert usage["output_tokens"] == 2 and usage["input_tokens"] > 5
    assert usage["total_tokens"] == usage["input_tokens"] + 2
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}


def test_a_stream_has_the_events_of_the_api_in_order(make_client):
    client = make_client(ScriptedBackend(THINKS_AND_CALLS))
    bodies = events(client.post(URL, json={"input": "Hello", "tools": [TOOL], "stream": True}))
    assert [body["type"].removeprefix("response.") for body in bodies] == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", *2 * ("function_call_arguments.delta",)),
        *("function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    assert [b["output_index"] for b in bodies[2:-1]] == [0] * 6 + [1] * 6 + [2] * 5
    added = [b["item"] for b in bodies if b["type"] == "response.output_item.added"]
    done = [b["item"] for b in bodies if b["type"] == "response.output_item.done"]
    assert {item["status"] for item in added} == {"in_progress"}
    assert [item["id"] for item in added] == [item["id"] for item in done]
    assert bodies[-1]["response"]["output"] == done
    assert (bodies[5]["text"], bodies[11]["text"]) == ("Hm.", "Sure.")
    assert bodies[10]["delta"] == "Sure." and bodies[10]["logprobs"] == []
    assert bodies[15]["delta"] + bodies[16]["delta"] == bodies[17]["arguments"]
    assert bodies[0]["response"]["status"] == "in_progress"
    assert bodies[0]["response"]["output"] == [] and bodies[0]["response"]["usage"] is None


def test_thoughts_text_and_calls_are_items(make_client):
    client = make_client(ScriptedBackend(THINKS_AND_CALLS))
    body = client.post(URL, json={"input": "Hello", "tools": [TOOL]}).json
    reasoning, message, call = body["output"]
    assert reasoning["summary"] == []
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert message["content"][0]["text"] == "Sure."
    assert (call["type"], call["name"]) == ("function_call", "add")
    assert json.loads(call["arguments"]) == {"a": 1, "b": 2} and call["call_id"]
    assert body["status"] == "completed" and body["completed_at"] >= body["created_at"]
    assert body["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}


def test_a_stream_that_fails_ends_with_the_whole_response(make_client):
    client = make_client(ScriptedBackend(fails("x")))
    *_, last = events(client.post(URL, json={**HELLO, "stream": True}))
    assert last["type"] == "response.failed"
    assert (last["response"]["status"], last["response"]["completed_at"]) == ("failed", None)
    assert last["response"]["error"] == {"code": "server_error", "message": "no luck"}
    [item] = last["response"]["output"]
    assert (item["content"][0]["text"], item["status"]) == ("x", "incomplete")


def test_tokens_from_the_cache_are_told(make_client):
    def script(job):
        yield Started(job.identifier)
        yield Finished(job.identifier, "stop", 10, 1, 4)

    usage = make_client(ScriptedBackend(script)).post(URL, json=HELLO).json["usage"]
    assert usage["input_tokens_details"] == {"cached_tokens": 4, "cache_write_tokens": 0}


def test_an_operator_cancels_a_response(make_client):
    client = make_client(ScriptedBackend(says(reason="cancelled")))
    assert client.post(URL, json=HELLO).json["status"] == "cancelled"
    *_, last = events(client.post(URL, json={**HELLO, "stream": True}))
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")


@pytest.mark.parameter("input", "input[].name", "input[].arguments", "instructions")
@pytest.mark.parameter("tools[].parameters")
def test_items_and_tools_are_in_the_prompt(client):
    request = {
        **HELLO,
        "instructions": "Be brief.",
        "tools": [TOOL],
        "input": [
            {"role": "user", "content": "What is it?"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
            },
            {
                **{"type": "function_call", "call_id": "call_1", "name": "add"},
                **{"arguments": '{"a": 1}', "id": "fc_1", "status": "completed"},
            },
            {"type": "function_call_output", "call_id": "call_1", "output": "three"},
            {"role": "user", "content": [{"type": "input_text", "text": "And now?"}]},
        ],
    }
    assert client.post(URL, json=request).status_code == 200
    text = prompt_of(client)
    assert '"description": "Adds."' in text and '"default": null' in text
    told = ["Be brief.", "What is it?", "Let me see.", '{"a": 1}', "three", "And now?"]
    assert sorted(told, key=text.index) == told
    assert text.count("assistant\n") == 2  # one answer, and the one to come


def test_thoughts_that_are_sent_back_are_for_the_template(make_client, with_template):
    backend = ScriptedBackend()
    client = make_client(backend, path=with_template("{{ messages[1].reasoning_content }}"))
    content = [{"type": "reasoning_text", "text": "Hm."}]
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "content": content}
    user = {"role": "user", "content": "x"}
    history = [user, reasoning, {"role": "assistant", "content": "y"}, user]
    client.post(URL, json={**HELLO, "input": history})
    assert prompt_of(client) == "Hm."


@pytest.mark.parameter("metadata", "/v1/responses")
@pytest.mark.parameter("prompt_cache_key", "safety_identifier")
def test_what_was_asked_for_is_told_again(client):
    asked = {
        **{"instructions": "Be brief.", "metadata": {"a": "b"}, "parallel_tool_calls": False},
        **{"store": False, "prompt_cache_key": "key", "safety_identifier": "somebody"},
        **{"temperature": 0.5, "tools": [TOOL], "tool_choice": "none", "top_p": 0.9, "user": "me"},
    }
    taken = {
        **{"background": False, "include": ["reasoning.encrypted_content"]},
        **{"previous_response_id": None, "service_tier": "auto", "truncation": "disabled"},
    }
    body = client.post(URL, json={**HELLO, **asked, **taken}).json
    assert {name: body[name] for name in asked} == asked


@pytest.mark.parameter("text", "/v1/responses")
@pytest.mark.parameter("text.format")
@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_object"},
        {"type": "json_schema", "name": "pair", "schema": {"type": "object"}},
    ],
)
def test_the_form_of_the_answer_constrains_the_job(client, form):
    body = client.post(URL, json={**HELLO, "text": {"format": form}}).json
    assert client.backend.enqueued[0].constraint is not None
    assert body["text"]["format"] == form
    body = client.post(URL, json={**HELLO, "text": {"format": {"type": None}}}).json
    assert body["text"]["format"] == {"type": "text"}


@pytest.mark.parameter("reasoning", "reasoning.effort")
def test_the_effort_is_told_to_the_template(make_client, with_template):
    client = make_client(path=with_template("{{ reasoning_effort }}"))
    reasoning = {"effort": "low", "summary": "auto", "x": None}
    body = client.post(URL, json={**HELLO, "reasoning": reasoning}).json
    assert prompt_of(client) == "low" and body["reasoning"]["effort"] == "low"


def test_what_exceeds_the_context_is_named(make_client):
    client = make_client(clamp_max_tokens=False)
    for change, param in (
        ({"max_output_tokens": 5000}, "max_output_tokens"),
        ({"input": "word " * 5000}, "input"),
    ):
        assert error_of(client.post(URL, json={**HELLO, **change}))["param"] == param


@pytest.mark.parametrize("name", ["content", "output", "summary"])
def test_parts_of_all_items_are_counted_together(name):
    half = {name: [{}] * 5000}
    assert len(items.clean([half, half])) == 2
    with pytest.raises(ValueError, match="at most 10000 parts"):
        items.clean([half, half, {name: [{}]}])


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "reasoning", "id": "r", "summary": []}]}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0"),
        ({"input": [{"type": "reasoning", "encrypted_content": "x"}]}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"metadata": {f"a{i}": 0 for i in range(60_000)}}, "metadata"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"timings": True}, "timings"),
        ({"stream": True, "return_progress": True}, "return_progress"),
        ({"background": True}, "background"),
        ({"conversation": "x"}, "conversation"),
        ({"store": "yes"}, "store"),
        ({"truncation": "middle"}, "truncation"),
        ({"tools": [{"name": "x"}]}, "tools.0.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"regex": r"[^\s\S]"}, "regex"),
        ({"reasoning": {"effort": "least"}}, "reasoning.effort"),
        ({"include": ["file_search_call.results"]}, "include.0"),
        ({"top_logprobs": 21}, "top_logprobs"),
    ],
)
def test_what_is_wrong_is_named(client, change, param):
    error = error_of(client.post(URL, json={**HELLO, **change}))
    assert error["param"] == param and not client.backend.enqueued
