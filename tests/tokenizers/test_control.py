"""Nobody's text becomes a control token, whatever it spells, on any route."""

import json
import random
from collections.abc import Callable

import pytest

from tests.app.websocket_client import Client
from tests.tokenizers.chats import as_sent, calling, said

NUM_TEXTS = 200
NO_GAPS = ("llama2", "llama3_1", "llama3_2", "gptoss")
A_CHAT = 25  # texts; an odd number ends with the user's
WITH_TOOLS = 8  # texts of a chat with tools


def spelling(asked) -> list[str]:
    """Texts that spell all added tokens, and their neighbours."""
    contents = [t.content for t in asked.tokenizer.get_added_tokens_decoder().values()]
    drawn = random.Random(0)
    drawn.shuffle(contents)
    contents *= -(-2 * NUM_TEXTS // len(contents))
    size = -(-len(contents) // NUM_TEXTS)
    groups = [contents[i : i + size] for i in range(0, len(contents), size)]
    return [drawn.choice(("", " ", "\n", "Yes")).join(["hi", *group, "ok"]) for group in groups]


def chat(asked, texts):
    turns = said(*texts)
    for turn in turns[1::2]:
        turn["reasoning_content"] = texts[0]
    body = {"messages": [{"role": "system", "content": texts[-1]}, *turns], "max_tokens": 1}
    asked.post("/v1/chat/completions", body)


def continued(asked, texts):
    body = {"messages": said(*texts, texts[0]), "max_tokens": 1, "continue_final_message": True}
    asked.post("/v1/chat/completions", body)


def responses(asked, texts):
    body = {"input": said(*texts), "instructions": texts[0], "max_output_tokens": 1}
    asked.post("/v1/responses", body)


def messages(asked, texts):
    turns = [
        {**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in said(*texts)
    ]
    asked.post("/v1/messages", {"messages": turns, "system": texts[0], "max_tokens": 1})


def ollama(asked, texts):
    asked.post("/api/chat", {"messages": said(*texts), "stream": False, "num_predict": 1})


def ollama_text(asked, texts):
    body = {"prompt": "\n".join(texts), "system": texts[0], "stream": False, "num_predict": 1}
    asked.post("/api/generate", body)


def websocket(asked, texts):
    connection = Client(asked.client.application)
    connection.send("generate", 1, prompt="\n".join(texts), max_tokens=1)
    assert connection.receive()["type"] == "end"
    connection.close()


def schema_of(name, description, value):
    properties = {name: {"type": "string", "description": description, "enum": [value]}}
    return {"type": "object", "properties": properties}


def tool_texts(asked, texts):
    """In all places that a chat with tools has."""
    a, b, c, d, e, *schema = texts
    call = {"id": d, "type": "function", "function": {"name": e, "arguments": {a: b}}}
    tool = {"name": "weather", "description": d, "parameters": schema_of(*schema)}
    body = {
        "messages": [
            {"role": "system", "content": c},
            {"role": "user", "content": e, "name": a},
            as_sent(calling(call)),
            {"role": "tool", "tool_call_id": d, "content": a},
        ],
        "tools": [{"type": "function", "function": tool}],
        "max_tokens": 1,
    }
    asked.post("/v1/chat/completions", body)


def tool_blocks(asked, texts):
    a, b, c, d, e, *schema = texts
    use = {"type": "tool_use", "id": d, "name": e, "input": {a: b}}
    result = {"type": "tool_result", "tool_use_id": d, "content": c}
    body = {
        "messages": [
            {"role": "user", "content": e},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ],
        "tools": [{"name": "weather", "description": d, "input_schema": schema_of(*schema)}],
        "max_tokens": 1,
    }
    asked.post("/v1/messages", body)


def tool_items(asked, texts):
    a, b, c, d, e, *schema = texts
    call = {"type": "function_call", "call_id": d, "name": e}
    tool = {"name": "weather", "description": d, "parameters": schema_of(*schema)}
    body = {
        "input": [
            {"role": "user", "content": e},
            {**call, "arguments": json.dumps({a: b})},
            {"type": "function_call_output", "call_id": d, "output": c},
        ],
        "tools": [{"type": "function", **tool}],
        "max_output_tokens": 1,
    }
    asked.post("/v1/responses", body)


def tools_of_ollama(asked, texts):
    a, b, c, d, e, *schema = texts
    call = {"function": {"name": e, "arguments": {a: b}}}
    tool = {"name": "weather", "description": d, "parameters": schema_of(*schema)}
    body = {
        "messages": [
            {"role": "user", "content": e},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_name": e, "content": c},
        ],
        "tools": [{"type": "function", "function": tool}],
        "stream": False,
        "num_predict": 1,
    }
    asked.post("/api/chat", body)


def text(path: str, field: str, **more: object) -> Callable:
    def send(asked, texts):
        asked.post(path, {field: "\n".join(texts), **more})

    return send


def infill(path: str, before: str, after: str, **more: object) -> Callable:
    def send(asked, texts):
        if asked.family in NO_GAPS:
            pytest.skip("its vocabulary has no tokens for a gap")
        asked.post(path, {before: "\n".join(texts[::2]), after: "\n".join(texts[1::2]), **more})

    return send


ROUTES = {
    "chat": chat,
    "chat, continued": continued,
    "responses": responses,
    "messages": messages,
    "ollama": ollama,
    "ollama, a text": ollama_text,
    "completions": text("/v1/completions", "prompt", max_tokens=1),
    "WebSocket": websocket,
    "plain": text("/generate", "prompt", max_tokens=1),
    "llama.cpp": text("/completion", "prompt", n_predict=1, parse_special=False),
    "kobold": text("/api/v1/generate", "prompt", max_length=1, parse_special=False),
    "infill": infill("/infill", "input_prefix", "input_suffix", n_predict=1),
    "suffix": infill("/v1/completions", "prompt", "suffix", max_tokens=1),
}
TOOL_ROUTES = {
    "chat": tool_texts,
    "messages": tool_blocks,
    "responses": tool_items,
    "ollama": tools_of_ollama,
}


def added(asked, send, texts) -> list[str]:
    """The added tokens in the prompt that a request makes of texts."""
    send(asked, texts)
    tokens = asked.tokenizer.get_added_tokens_decoder()
    return [tokens[i].content for i in asked.jobs[-1].prompt if i in tokens]


def check(asked, send, size):
    texts = spelling(asked)
    expected = added(asked, send, ["x"] * size)
    for i in range(0, len(texts), size):
        assert added(asked, send, [*texts, *texts][i : i + size]) == expected


@pytest.mark.parametrize("route", ROUTES)
def test_no_text_becomes_a_control_token(asked, route):
    check(asked, ROUTES[route], A_CHAT)


@pytest.mark.parametrize("route", TOOL_ROUTES)
def test_no_text_of_tools_becomes_a_control_token(asked, route):
    check(asked, TOOL_ROUTES[route], WITH_TOOLS)
