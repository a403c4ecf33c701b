"""A host application whose models are a server's: texts, streams, and visitors who leave."""

import gc
import queue
import threading

import pytest

from switchyard.app import ClientGone
from tests.app.client_mode.conftest import ENDLESS
from tests.app.conftest import wait_until_empty
from tests.scripted import ScriptedBackend, endless, ticking

CHAT = [{"role": "user", "content": "hello"}]


def test_an_answer_is_the_server_s(behind):
    app, client = behind()
    result = app.switchyard.generate("x", max_tokens=3)
    usage = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 3}).json["usage"]
    told = (result.text, result.finish_reason, result.prompt_tokens, result.completion_tokens)
    assert told == ("0 1 2 ", "length", usage["prompt_tokens"], 3)
    result = app.switchyard.generate(messages=CHAT, max_tokens=4)
    body = client.post("/v1/chat/completions", json={"messages": CHAT, "max_tokens": 4}).json
    assert result.text == body["choices"][0]["message"]["content"]
    assert result.prompt_tokens == body["usage"]["prompt_tokens"]


def test_a_stream_s_pieces_come_as_they_are_generated(behind, gate):
    app, _ = behind(ScriptedBackend(gate=gate), heartbeat=0.05)
    gate.step(2)
    stream = app.switchyard.stream("x", max_tokens=3)
    assert next(stream) == "0 "
    gate.step(1)
    assert next(stream) == "1 "
    gate.open()
    assert list(stream) == ["2 "]
    assert stream.result.text == "0 1 2 "


@pytest.mark.parametrize("leave", [lambda s: s.close(), lambda s: None], ids=["close", "drop"])
def test_who_leaves_a_stream_cancels_it_on_the_server(behind, leave):
    app, client = behind(ScriptedBackend(ticking))
    stream = app.switchyard.stream("x", **ENDLESS)
    source = stream._source  # which the end of its last reference would close, too
    next(stream)
    leave(stream)
    del stream
    gc.collect()
    wait_until_empty(client)
    source.close()


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_visitor_who_leaves_is_noticed(behind, connection, gate, has_begun):
    backend = ScriptedBackend(ticking) if has_begun else ScriptedBackend(endless, gate=gate)
    app, client = behind(backend, heartbeat=3600)
    errors = queue.Queue()

    def run():
        """In a view whose client is at the other end of the connection."""
        with app.test_request_context("/", environ_overrides=connection.environ):
            try:
                errors.put(app.switchyard.generate("x", **ENDLESS))
            except Exception as error:
                errors.put(error)

    thread = threading.Thread(target=run)
    thread.start()
    if not has_begun:
        gate.wait_until_held()  # its job is there, and no byte of its answer
    while has_begun and not backend.num_chunks:
        thread.join(0.01)
    connection.reset()
    assert isinstance(errors.get(timeout=20), ClientGone)
    gate.open()
    thread.join(20)
    wait_until_empty(client)
