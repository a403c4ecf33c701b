"""What a client puts together of a stream is what it would have been given as a whole."""

import json

import pytest

from tests.scripted import ScriptedBackend, says

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FUNCTION = {"name": "add", "description": "Adds.", "parameters": SCHEMA}
CALL = ['<tool_call>{"name": "add", "arguments": {"a"', ": 1}}</tool_call>"]
SCRIPTS = {
    "text": ["One", " two", " three."],
    "thoughts": ["<think>", "One", " more.", "</think>", "Sure", ", yes."],
    "calls": ["Let me", " see.", *CALL, *CALL],
    "all": ["<think>", "One", " more.", "</think>", "Sure", ".", *CALL],
    "nothing": [],
    "a call that is cut off": ["Sure.", *CALL[:1]],
}
MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.fixture(params=SCRIPTS)
def client(make_client, request):
    return make_client(ScriptedBackend(says(*SCRIPTS[request.param])))


def both(client, path, body):
    """The whole answer, and the bodies of the stream."""
    response = client.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    data = [line[6:] for line in response.text.split("\n") if line.startswith("data: {")]
    return client.post(path, json=body).json, [json.loads(each) for each in data]


def of_chat(bodies):
    """As OpenAI's clients do: by the index of a choice, and of a call."""
    message, reason = {}, None
    for [choice] in (body["choices"] for body in bodies if body["choices"]):
        delta = dict(choice["delta"])
        for call in delta.pop("tool_calls", ()):
            calls = message.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                calls.append({"type": "", "function": {"name": "", "arguments": ""}})
            for name, text in call.get("function", {}).items():
                calls[call["index"]]["function"][name] += text
            calls[call["index"]]["type"] += call.get("type", "")
        for name, text in delta.items():
            message[name] = (message.get(name) or "") + (text or "")
        reason = choice["finish_reason"] or reason
    return message, reason


def chat_of(body):
    [choice] = body["choices"]
    message = {name: value for name, value in choice["message"].items() if name != "refusal"}
    message["content"] = message["content"] or ""
    for call in message.get("tool_calls", ()):
        del call["id"]
    return message, choice["finish_reason"]


def of_messages(bodies):
    """As Anthropic's: what a block begins with, and what comes for it."""
    blocks, reason = [], None
    for body in bodies:
        match body["type"]:
            case "content_block_start":
                assert body["index"] == len(blocks)
                blocks.append(body["content_block"])
                json_text = ""
            case "content_block_delta":
                block, delta = blocks[body["index"]], body["delta"]
                match delta.pop("type"):
                    case "input_json_delta":
                        json_text += delta["partial_json"]
                    case _:
                        [(name, text)] = delta.items()
                        block[name] += text
            case "content_block_stop" if blocks[-1]["type"] == "tool_use":
                assert blocks[-1]["input"] == {}
                blocks[-1]["input"] = json_text
            case "message_delta":
                reason = body["delta"]["stop_reason"]
    return blocks, reason


def same_input(told, whole):
    """A call that is cut off has in a stream what there is of it, and as a whole an object."""
    for one, other in zip(told, whole, strict=True):
        if one["type"] == "tool_use":
            try:
                one["input"] = json.loads(one["input"])
            except ValueError:
                assert one["input"].startswith("{")
                one["input"] = other["input"]
        for name in ("id", "signature"):
            assert bool(one.pop(name, None)) == bool(other.pop(name, None))


def test_a_chat(client):
    asked = {"messages": MESSAGES, "tools": [{"type": "function", "function": FUNCTION}]}
    whole, stream = both(client, "/v1/chat/completions", asked)
    assert of_chat(stream) == chat_of(whole)


def test_a_message(client):
    tools = [{"name": "add", "description": "Adds.", "input_schema": SCHEMA}]
    asked = {"messages": MESSAGES, "tools": tools, "max_tokens": 100}
    whole, stream = both(client, "/v1/messages", asked)
    told, told_reason = of_messages(stream)
    same_input(told, whole["content"])
    assert (told, told_reason) == (whole["content"], whole["stop_reason"])
    assert stream[0]["message"]["content"] == []
    assert stream[0]["message"]["stop_reason"] is None


def test_an_answer_of_ollamas_api(client):
    asked = {"messages": MESSAGES, "tools": [{"type": "function", "function": FUNCTION}]}
    whole = client.post("/api/chat", json={**asked, "stream": False}).json
    together = {"role": "assistant", "content": ""}
    for line in client.post("/api/chat", json=asked).text.splitlines():
        last = json.loads(line)
        message = last.pop("message")
        for field in ("content", "thinking", "tool_calls"):
            if field in message:
                empty = [] if field == "tool_calls" else ""
                together[field] = together.get(field, empty) + message[field]
    for call in (*together.get("tool_calls", ()), *whole["message"].get("tool_calls", ())):
        assert call.pop("id").startswith("call_")
    assert together == whole["message"]
    assert last["done_reason"] == whole["done_reason"] == "stop"


def test_a_response(client):
    asked = {"input": "Hello", "tools": [{"type": "function", **FUNCTION}]}
    whole, bodies = both(client, "/v1/responses", asked)
    last = bodies[-1]["response"]
    items, texts = [], {}
    for body in bodies:
        place = body.get("output_index")
        match body["type"].removeprefix("response."):
            case "output_item.added":
                assert place == len(items)
                items.append(body["item"])
                assert body["item"]["status"] == "in_progress"
                assert not body["item"].get("content") and not body["item"].get("arguments")
            case "content_part.added":
                assert body["part"]["text"] == ""
            case kind if kind.endswith(".delta"):
                assert body["item_id"] == items[place]["id"]
                texts[place] = texts.get(place, "") + body["delta"]
            case "content_part.done":
                assert body["part"]["text"] == texts[place]
            case "output_item.done":
                assert body["item"]["id"] == items[place]["id"]
                items[place] = body["item"]
            case kind if kind.endswith(".done"):
                assert body.get("text", body.get("arguments")) == texts[place]
    assert items == last["output"]
    for item in [*items, *whole["output"]]:
        item.pop("id"), item.pop("call_id", None)
    assert items == whole["output"] and last["status"] == whole["status"]
    assert last["usage"] == whole["usage"] and last["incomplete_details"] is None
