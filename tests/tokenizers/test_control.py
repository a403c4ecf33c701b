"""Nobody's text becomes a control token, whatever it spells, on any route."""

import json
import random
from collections.abc import Callable

import pytest

from tests.app.websocket_client import Client
from tests.tokenizers.chats import as_sent, calling, said

CHAT = "/v1/chat/completions"
OLLAMA = {"stream": False, "num_predict": 1}
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


def chat(texts):
    turns = said(*texts)
    for turn in turns[1::2]:
        turn["reasoning_content"] = texts[0]
    return CHAT, {"messages": [{"role": "system", "content": texts[-1]}, *turns], "max_tokens": 1}


def continued(texts):
    body = {"messages": said(*texts, texts[0]), "max_tokens": 1, "continue_final_message": True}
    return CHAT, body


def responses(texts):
    body = {"input": said(*texts), "instructions": texts[0], "max_output_tokens": 1}
    return "/v1/responses", body


def messages(texts):
    turns = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in said(*texts)]
    return "/v1/messages", {"messages": turns, "system": texts[0], "max_tokens": 1}


def schema_of(name, description, value):
    properties = {name: {"type": "string", "description": description, "enum": [value]}}
    return {"type": "object", "properties": properties}


def tool_texts(texts):
    """In all places that a chat with tools has."""
    a, b, c, d, e, *schema = texts
    call = {"id": d, "type": "function", "function": {"name": e, "arguments": {a: b}}}
    tool = {"name": "weather", "description": d, "parameters": schema_of(*schema)}
    turns = [
        {"role": "system", "content": c},
        {"role": "user", "content": e, "name": a},
        as_sent(calling(call)),
        {"role": "tool", "tool_call_id": d, "content": a},
    ]
    tools = [{"type": "function", "function": tool}]
    return CHAT, {"messages": turns, "tools": tools, "max_tokens": 1}


def tool_blocks(texts):
    a, b, c, d, e, *schema = texts
    use = {"type": "tool_use", "id": d, "name": e, "input": {a: b}}
    result = {"type": "tool_result", "tool_use_id": d, "content": c}
    turns = [
        {"role": "user", "content": e},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    tools = [{"name": "weather", "description": d, "input_schema": schema_of(*schema)}]
    return "/v1/messages", {"messages": turns, "tools": tools, "max_tokens": 1}


def tool_items(texts):
    a, b, c, d, e, *schema = texts
    call = {"type": "function_call", "call_id": d, "name": e, "arguments": json.dumps({a: b})}
    result = {"type": "function_call_output", "call_id": d, "output": c}
    tool = {"name": "weather", "description": d, "parameters": schema_of(*schema)}
    body = {"input": [{"role": "user", "content": e}, call, result], "max_output_tokens": 1}
    return "/v1/responses", {**body, "tools": [{"type": "function", **tool}]}


def tools_of_ollama(texts):
    a, b, c, d, e, *schema = texts
    call = {"function": {"name": e, "arguments": {a: b}}}
    tool = {"name": "weather", "description": d, "parameters": schema_of(*schema)}
    turns = [
        {"role": "user", "content": e},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_name": e, "content": c},
    ]
    tools = [{"type": "function", "function": tool}]
    return "/api/chat", {"messages": turns, "tools": tools, **OLLAMA}


def text(path: str, field: str, **more: object) -> Callable:
    return lambda texts: (path, {field: "\n".join(texts), **more})


def infill(path: str, before: str, after: str, **more: object) -> Callable:
    return lambda texts: (
        path,
        {before: "\n".join(texts[::2]), after: "\n".join(texts[1::2]), **more},
    )


ROUTES = {
    "chat": chat,
    "chat, continued": continued,
    "responses": responses,
    "messages": messages,
    "ollama": lambda texts: ("/api/chat", {"messages": said(*texts), **OLLAMA}),
    "ollama, a text": lambda texts: (
        "/api/generate",
        {"prompt": "\n".join(texts), "system": texts[0], **OLLAMA},
    ),
    "completions": text("/v1/completions", "prompt", max_tokens=1),
    "WebSocket": text("/v1/stream", "prompt", max_tokens=1),
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


def added(asked, make, texts) -> list[str]:
    """The added tokens in the prompt that a request makes of texts."""
    path, body = make(texts)
    if path == "/v1/stream":
        connection = Client(asked.client.application)
        connection.send("generate", 1, **body)
        assert connection.receive()["type"] == "end"
        connection.close()
    else:
        asked.post(path, body)
    tokens = asked.tokenizer.get_added_tokens_decoder()
    return [tokens[i].content for i in asked.jobs[-1].prompt if i in tokens]


def check(asked, make, size):
    texts = spelling(asked)
    expected = added(asked, make, ["x"] * size)
    for i in range(0, len(texts), size):
        assert added(asked, make, [*texts, *texts][i : i + size]) == expected


@pytest.mark.parametrize("route", ROUTES)
def test_no_text_becomes_a_control_token(asked, route):
    if route in ("infill", "suffix") and asked.family in NO_GAPS:
        pytest.skip("its vocabulary has no tokens for a gap")
    check(asked, ROUTES[route], A_CHAT)


@pytest.mark.parametrize("route", TOOL_ROUTES)
def test_no_text_of_tools_becomes_a_control_token(asked, route):
    check(asked, TOOL_ROUTES[route], WITH_TOOLS)
