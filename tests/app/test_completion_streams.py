"""Streams of /v1/completions: frames, framings, heartbeats, and what ends them."""

import json
import threading

import pytest

from switchyard import engine
from switchyard.engine.messages import Chunk, Failed, Prefill, Started
from tests.app.conftest import frames
from tests.scripted import Gate, ScriptedBackend, count, says

pytestmark = pytest.mark.both_ways
URL = "/v1/completions"


@pytest.mark.parameter("stream")
def test_a_stream_has_one_frame_a_chunk_and_ends_with_done(make_client):
    client = make_client(ScriptedBackend())
    response = client.post(URL, json={"prompt": "x", "max_tokens": 3, "stream": True})
    assert response.mimetype == "text/event-stream"
    assert response.headers["Cache-Control"] == "no-cache"
    assert response.headers["X-Accel-Buffering"] == "no"
    bodies = frames(response)
    assert [b["choices"][0]["text"] for b in bodies] == ["0 ", "1 ", "2 ", ""]
    assert [b["choices"][0]["finish_reason"] for b in bodies] == [None, None, None, "length"]
    assert len({(b["id"], b["created"], b["model"], b["object"]) for b in bodies}) == 1
    assert not any("usage" in b for b in bodies)


def test_tokens_without_text_make_no_frame(make_client):
    client = make_client(ScriptedBackend(says("", "a", "", "b")))
    bodies = frames(client.post(URL, json={"prompt": "x", "stream": True}))
    assert [b["choices"][0]["text"] for b in bodies] == ["a", "b", ""]


@pytest.mark.parameter("stream_options")
@pytest.mark.parameter("stream_options.include_usage")
def test_a_stream_tells_usage_last_when_asked_to(make_client):
    request = {
        "prompt": "x",
        "max_tokens": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    *bodies, last = frames(make_client(ScriptedBackend()).post(URL, json=request))
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 2
    assert all(body["usage"] is None for body in bodies)


def test_usage_counts_each_prompt_once_in_whatever_order_choices_end(make_client):
    """Here one of each prompt, and then the other."""
    lengths = {"0": 1, "1": 3, "2": 2, "3": 4}  # in tokens, by choice

    def script(job):
        length = lengths[job.identifier.rpartition("-")[2]]
        yield from says(*["x"] * length)(job)

    request = {"prompt": ["x", "A prompt that is longer"], "n": 2, "max_tokens": 9}
    client = make_client(ScriptedBackend(script))
    usage = client.post(URL, json=request).json["usage"]
    alone = [
        client.post(URL, json={**request, "prompt": prompt}).json["usage"]["prompt_tokens"]
        for prompt in request["prompt"]
    ]
    assert alone[0] < alone[1]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (sum(alone), 10)
    streamed = {**request, "stream": True, "stream_options": {"include_usage": True}}
    assert frames(client.post(URL, json=streamed))[-1]["usage"] == usage


def test_streamed_choices_are_told_apart_by_index(make_client):
    request = {"prompt": ["x", "y"], "n": 2, "max_tokens": 2, "stream": True}
    choices = [
        f["choices"][0] for f in frames(make_client(ScriptedBackend()).post(URL, json=request))
    ]
    for index in range(4):
        assert [c["text"] for c in choices if c["index"] == index] == ["0 ", "1 ", ""]


@pytest.mark.one_way  # a sender's writes go on while they are counted: see test_output.py
def test_what_has_piled_up_is_one_write(make_client):
    client = make_client(ScriptedBackend())
    gate_request = {"prompt": "x", "max_tokens": 50, "stream": True}
    response = client.post(URL, json=gate_request)
    client.post(URL, json={"prompt": "x", "max_tokens": 100})  # by its end, the first has ended
    writes = list(response.response)
    assert b"".join(writes).count(b"data: ") == 52
    assert len(writes) <= 2  # what the status line waited for, and all that followed


def test_json_lines_for_clients_that_ask_for_them(make_client):
    response = make_client(ScriptedBackend()).post(
        URL,
        json={"prompt": "x", "max_tokens": 2, "stream": True},
        headers={"Accept": "application/x-ndjson"},
    )
    assert response.mimetype == "application/x-ndjson"
    bodies = [json.loads(line) for line in response.get_data().splitlines()]
    assert [b["choices"][0]["text"] for b in bodies] == ["0 ", "1 ", ""]


def test_bare_text_for_clients_that_ask_for_it(make_client):
    response = make_client(ScriptedBackend()).post(
        URL,
        json={"prompt": "Say ", "echo": True, "max_tokens": 2, "stream": True},
        headers={"Accept": "text/plain"},
    )
    assert response.mimetype == "text/plain"
    assert response.get_data(as_text=True) == "Say 0 1 "


@pytest.mark.parametrize(
    "accept",
    [
        "*/*",
        "application/json",
        "application/json, text/plain",
        "application/json, text/plain, */*",
        "text/event-stream",
    ],
)
def test_other_clients_get_server_sent_events(make_client, accept):
    response = make_client(ScriptedBackend()).post(
        URL, json={"prompt": "x", "stream": True}, headers={"Accept": accept}
    )
    assert response.mimetype == "text/event-stream"


@pytest.mark.parametrize("first", ["application/x-ndjson", "text/plain"])
def test_of_bare_text_and_lines_of_json_that_are_asked_for_alike_the_lines_come(make_client, first):
    accept = sorted(["text/plain", "application/x-ndjson"], key=lambda one: one != first)
    response = make_client(ScriptedBackend()).post(
        URL, json={"prompt": "x", "stream": True}, headers={"Accept": ", ".join(accept)}
    )
    assert response.mimetype == "application/x-ndjson"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"n": 2}, "n"),
        ({"prompt": ["x", "y"]}, "n"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_bare_text_refuses_what_it_has_no_room_for(make_client, more, param):
    response = make_client(ScriptedBackend()).post(
        URL, json={"prompt": "x", "stream": True, **more}, headers={"Accept": "text/plain"}
    )
    assert response.status_code == 400 and response.json["error"]["param"] == param


def test_a_job_that_is_rejected_gets_its_status_also_when_streaming(make_client):
    def script(job):
        yield Started(job.identifier)
        yield Failed(job.identifier, engine.JobFailed("bad sampler"))

    client = make_client(ScriptedBackend(script))
    for stream in (False, True):
        response = client.post(URL, json={"prompt": "x", "stream": stream})
        assert response.status_code == 500
        assert response.json["error"]["message"] == "bad sampler"
        assert response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("accept", "ending"),
    [
        ("*/*", '"code":"job_failed"}}\n\ndata: [DONE]\n\n'),
        ("application/x-ndjson", '"code":"job_failed"}}\n'),
        ("text/plain", "0 \n[error] bad luck\n"),
    ],
)
def test_a_job_that_fails_midway_ends_its_stream_with_the_error(make_client, accept, ending):
    def script(job):
        yield Chunk(job.identifier, "0 ", (0,))
        yield Failed(job.identifier, engine.JobFailed("bad luck"))

    response = make_client(ScriptedBackend(script)).post(
        URL, json={"prompt": "x", "stream": True}, headers={"Accept": accept}
    )
    assert response.status_code == 200
    assert response.get_data(as_text=True).endswith(ending)


def test_one_failed_choice_ends_the_response_and_cancels_the_others(make_client):
    def script(job):
        if job.identifier.endswith("-0"):
            yield Chunk(job.identifier, "0 ", (0,))
            yield Failed(job.identifier, engine.JobFailed("bad luck"))
        yield from count(job)

    backend = ScriptedBackend(script)
    client = make_client(backend)
    response = client.post(URL, json={"prompt": "x", "n": 2, "max_tokens": 2000})
    assert response.status_code == 500
    model = client.models.get()
    with model._changed:
        assert model._changed.wait_for(lambda: not model._held, 20)
    assert not backend.active


def test_heartbeats_come_while_a_job_waits(make_client):
    gate = Gate()
    client = make_client(ScriptedBackend(gate=gate), heartbeat=0.01)
    response = client.post(URL, json={"prompt": "x", "max_tokens": 1, "stream": True})
    writes = iter(response.response)
    assert next(writes).startswith(b": ")
    assert next(writes).startswith(b": ")
    gate.open()
    rest = b"".join(writes)
    assert b'"text":"0 "' in rest and rest.endswith(b"data: [DONE]\n\n")


def test_bare_text_tells_a_failure_without_identifiers_of_responses(make_client):
    def script(job):
        yield engine.Chunk(job.identifier, "0 ", (0,))
        yield engine.Failed(job.identifier, engine.JobFailed(f"broken: {'a' * 32}"))

    client = make_client(ScriptedBackend(script))
    body = {"prompt": "x", "stream": True}
    text = client.post("/v1/completions", json=body, headers={"Accept": "text/plain"}).text
    assert text == "0 \n[error] broken: …\n"


def test_a_job_that_fails_behind_heartbeats_ends_with_an_error_event(make_client):
    def script(job):
        yield engine.Failed(job.identifier, engine.JobFailed("broken"))

    gate = Gate()
    client = make_client(ScriptedBackend(script, gate=gate), heartbeat=0.01)
    response = client.post(URL, json={"prompt": "x", "stream": True})
    writes = iter(response.response)
    assert next(writes).startswith(b": ")
    gate.open()
    frames = b"".join(writes).split(b"\n\n")
    error, *done = (frame for frame in frames if not frame.startswith(b": "))
    assert json.loads(error.removeprefix(b"data: "))["error"]["message"] == "broken"
    assert done == [b"data: [DONE]", b""]


@pytest.mark.one_way
def test_bare_text_has_no_heartbeat_but_an_empty_write_sends_its_status(make_client):
    gate = Gate()
    client = make_client(ScriptedBackend(gate=gate), heartbeat=0.01)
    give_up = threading.Timer(10, gate.open)
    give_up.start()
    response = client.post(
        URL,
        json={"prompt": "x", "max_tokens": 1, "stream": True},
        headers={"Accept": "text/plain"},
    )
    writes = iter(response.response)
    assert next(writes) == b""
    give_up.cancel()
    gate.open()
    assert b"".join(writes) == b"0 "


@pytest.mark.parametrize("text", [None, ""])
def test_bare_text_without_any_text_ends_when_its_job_does(make_client, ask, text):
    """Not a heartbeat later."""
    script = says() if text is None else says(text)
    client = make_client(ScriptedBackend(script), heartbeat=12)
    answer = ask(client, {"prompt": "x", "stream": True}, headers={"Accept": "text/plain"})
    response = answer.get(timeout=6)
    assert (response.status_code, response.get_data()) == (200, b"")


def test_heartbeats_come_during_a_long_prefill(make_client):
    def script(job):
        for i in range(100):
            yield Prefill(job.identifier, i, 100)
        yield from count(job)

    gate = Gate()
    client = make_client(ScriptedBackend(script, gate=gate), heartbeat=0.01)
    gate.step(50)
    response = client.post(URL, json={"prompt": "x", "max_tokens": 1, "stream": True})
    assert next(iter(response.response)).startswith(b": ")
    gate.open()
    response.close()


def test_a_client_that_leaves_before_the_first_byte_cancels_its_job(make_client):
    gate = Gate()
    backend = ScriptedBackend(gate=gate)
    client = make_client(backend, heartbeat=0.01)
    response = client.post(URL, json={"prompt": "x", "max_tokens": 2000, "stream": True})
    response.close()
    gate.open()
    model = client.models.get()
    with model._changed:
        assert model._changed.wait_for(lambda: not model._held, 20)
    assert "cancel" in [name for name, _ in backend.calls]
