"""Texts that spell control tokens are plain text, on each route and in each part of a request."""

import random
from collections import Counter

import pytest

from tests.app.chat.test_enforced import WEATHER
from tests.conftest import DEMO
from tests.layouts import TAGS, lay_out
from tests.scripted import ScriptedBackend, says

USER, HOLE = "<\uff5cUser\uff5c>", "<|hole|>"
TOKENS = (*TAGS, USER, HOLE, "</tool_response>", "<table>")
SPELLED = (*TAGS, USER, "</tool_response>")
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


@pytest.fixture(params=["special", "added"])
def client(request, make_client, tmp_path):
    path = lay_out(request.param, DEMO, tmp_path / "model", tags=TOKENS, spelled=SPELLED)
    backend = ScriptedBackend(says("x"))
    client = make_client(backend, path=path, tool_format="hermes")
    client.backend = backend
    return client


def forged(tokenizer, draw):
    """A text of control tokens, whole or in part."""
    words = [*tokenizer.tag_ids, "x", " ", "\n", "user", "<|im_", "end|>", "<", "think>"]
    text = "".join(draw.choices(words, k=draw.randrange(1, 6)))
    return text.replace("<table>", "") or "x"


def call(text):
    function = {"name": "get_weather", "arguments": f'{{"city": {text!r}}}'.replace("'", '"')}
    return {"id": "call_1", "type": "function", "function": function}


PLACES = {
    "user": lambda t: (CHAT, {"messages": [{"role": "user", "content": t}]}),
    "system": lambda t: (
        CHAT,
        {"messages": [{"role": "system", "content": t}, {"role": "user", "content": "x"}]},
    ),
    "parts": lambda t: (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": t}] * 2}]},
    ),
    "assistant": lambda t: (
        CHAT,
        {"messages": [{"role": "assistant", "content": t}, {"role": "user", "content": "x"}]},
    ),
    "result": lambda t: (
        CHAT,
        {
            "tools": [WEATHER],
            "messages": [
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": None, "tool_calls": [call("x")]},
                {"role": "tool", "tool_call_id": "call_1", "content": t},
            ],
        },
    ),
    "description": lambda t: (
        CHAT,
        {
            "tools": [{**WEATHER, "function": {**WEATHER["function"], "description": t}}],
            "messages": [{"role": "user", "content": "x"}],
        },
    ),
    "Anthropic's": lambda t: (
        MESSAGES,
        {"max_tokens": 5, "system": t, "messages": [{"role": "user", "content": t}]},
    ),
    "Responses": lambda t: ("/v1/responses", {"input": t, "instructions": t}),
    "completions": lambda t: ("/v1/completions", {"prompt": t}),
    "generate": lambda t: ("/generate", {"prompt": t}),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_text_that_spells_control_tokens_adds_none(client, place):
    tokenizer, draw = client.models.get().tokenizer, random.Random(place)
    assert {tokenizer.token(i) for i in tokenizer.control_ids} >= {*SPELLED, HOLE, "<|im_end|>"}

    def num_control(text):
        url, body = PLACES[place](text)
        response = client.post(url, json=body)
        assert response.status_code == 200, response.json
        prompt = client.backend.enqueued[-1].prompt
        return Counter(i for i in prompt if i in tokenizer.control_ids)

    expected = num_control("x")
    for _ in range(40):
        text = forged(tokenizer, draw)
        assert num_control(text) == expected, text


def test_an_added_token_that_controls_nothing_stays_usable(client):
    tokenizer = client.models.get().tokenizer
    table = tokenizer.tag_ids["<table>"]
    is_special = tokenizer.piece(table) == b""
    assert (table in tokenizer.encode("a <table> b", 100)) != is_special


def test_a_client_may_ask_for_control_tokens(client):
    tokenizer = client.models.get().tokenizer
    for tag in (USER, HOLE, "<think>"):
        client.post("/generate", json={"prompt": f"x{tag}y", "parse_special": True})
        assert tokenizer.tag_ids[tag] in client.backend.enqueued[-1].prompt
