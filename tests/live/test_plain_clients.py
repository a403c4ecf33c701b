"""Clients that speak no OpenAI, over real sockets and the real generator: one prompt, one text."""

import json

import requests
import websocket

PROMPT = "Once upon a time"
GREEDY = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True}


def data(lines):
    return [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]


def test_every_way_to_ask_gives_the_same_text(server):
    openai = server.post("/v1/completions", {**GREEDY, "max_tokens": 12}).json()
    expected = openai["choices"][0]["text"]
    url = f"{server.url}/generate"
    form = {**GREEDY, "ignore_eos": "true", "max_tokens": 12}
    assert requests.post(url, data=form, timeout=60).json()["text"] == expected
    assert requests.get(url, params=form, timeout=60).json()["text"] == expected
    kobold = {"prompt": PROMPT, "temperature": 0, "bypass_eos": True, "max_length": 12}
    for body in (kobold, {**GREEDY, "max_new_tokens": 12}):  # textgen's
        [result] = server.post("/api/v1/generate", body).json()["results"]
        assert result["text"] == expected
    llamacpp = server.post("/completion", {**GREEDY, "n_predict": 12}).json()
    assert (llamacpp["content"], llamacpp["stop_type"]) == (expected, "limit")
    with server.post("/api/extra/generate/stream", kobold, stream=True) as response:
        assert "".join(body["token"] for body in data(response.iter_lines())) == expected
    stream = websocket.create_connection(f"{server.url.replace('http', 'ws')}/v1/stream")
    stream.send(json.dumps({"type": "generate", "id": 1, **GREEDY, "max_tokens": 12}))
    texts = []
    while (message := json.loads(stream.recv()))["type"] == "chunk":
        texts.append(message["text"])
    stream.close()
    assert ("".join(texts), message["usage"]["completion_tokens"]) == (expected, 12)


def test_an_event_source_reads_to_the_end_and_is_told_to_give_up(server):
    query = {"prompt": PROMPT, "max_tokens": 5, "stream": "true"}
    headers = {"Accept": "text/event-stream"}
    url = f"{server.url}/generate"
    with requests.get(url, params=query, headers=headers, stream=True, timeout=60) as response:
        assert response.headers["Cache-Control"] == "no-store"
        lines = list(response.iter_lines())
    [identifier] = [line[4:] for line in lines if line.startswith(b"id: ")]
    assert lines.count(b"event: end") == 1
    assert data(lines)[-1]["usage"]["completion_tokens"] <= 5
    headers["Last-Event-ID"] = identifier
    again = requests.get(url, params=query, headers=headers, timeout=60)
    assert (again.status_code, again.content) == (204, b"")


def test_tokens_are_told_over_the_wire(server):
    tokens = server.post("/tokenize", {"content": PROMPT}).json()["tokens"]
    assert server.post("/detokenize", {"tokens": tokens}).json()["content"] == PROMPT
