"""Texts that spell control tokens are plain text, on each route and in each part of a request."""

import json
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


def chat(text):
    """With the text wherever a client may put one."""
    arguments = json.dumps({"city": text})
    call = {"name": "get_weather", "arguments": arguments}
    return {
        "tools": [{**WEATHER, "function": {**WEATHER["function"], "description": text}}],
        "messages": [
            {"role": "system", "content": text},
            {"role": "user", "content": text},
            {"role": "user", "content": [{"type": "text", "text": text}] * 2},
            {
                "role": "assistant",
                "content": text,
                "tool_calls": [{"id": "call_1", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": text},
        ],
    }


def message(text):
    return {"max_tokens": 5, "system": text, "messages": [{"role": "user", "content": text}]}


PLACES = {
    "/v1/chat/completions": chat,
    "/v1/messages": message,
    "/v1/responses": lambda text: {"input": text, "instructions": text},
    "/v1/completions": lambda text: {"prompt": text},
    "/generate": lambda text: {"prompt": text},
}


@pytest.mark.parametrize("url", PLACES)
def test_a_text_that_spells_control_tokens_adds_none(client, url):
    tokenizer, draw = client.models.get().tokenizer, random.Random(url)
    assert {tokenizer.token(i) for i in tokenizer.control_ids} >= {*SPELLED, HOLE, "<|im_end|>"}

    def num_control(text):
        response = client.post(url, json=PLACES[url](text))
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
