"""Streams of /v1/completions: frames, framings, heartbeats, and what ends them."""

import json

import pytest

from switchyard import engine
from tests.app.conftest import fails, frames, wait_until_empty
from tests.scripted import ScriptedBackend, count, says

pytestmark = pytest.mark.both_ways
URL = "/v1/completions"


def post(client, accept="*/*", **body):
    """For a stream."""
    body = {"prompt": "x", "stream": True, **body}
    return client.post(URL, json=body, headers={"Accept": accept})


@pytest.mark.parameter("stream")
def test_a_stream_has_one_frame_a_chunk_and_ends_with_done(make_client):
    response = post(make_client(), max_tokens=3)
    assert response.mimetype == "text/event-stream"
    assert response.headers["Cache-Control"] == "no-cache"
    assert response.headers["X-Accel-Buffering"] == "no"
    bodies = frames(response)
    assert [b["choices"][0]["text"] for b in bodies] == ["0 ", "1 ", "2 ", ""]
    assert [b["choices"][0]["finish_reason"] for b in bodies] == [None, None, None, "length"]
    assert len({(b["id"], b["created"], b["model"], b["object"]) for b in bodies}) == 1
    assert not any("usage" in b for b in bodies)


def test_tokens_without_text_make_no_frame(make_client):
    bodies = frames(post(make_client(ScriptedBackend(says("", "a", "", "b")))))
    assert [b["choices"][0]["text"] for b in bodies] == ["a", "b", ""]


@pytest.mark.parameter("stream_options", "stream_options.include_usage")
def test_a_stream_tells_usage_last_when_asked_to(make_client):
    options = {"include_usage": True}
    *bodies, last = frames(post(make_client(), max_tokens=2, stream_options=options))
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 2
    assert all(body["usage"] is None for body in bodies)


def test_usage_counts_each_prompt_once_in_whatever_order_choices_end(make_client):
    """Here one of each prompt, and then the other."""
    lengths = {"0": 1, "1": 3, "2": 2, "3": 4}  # in tokens, by choice

    def script(job):
        return says(*["x"] * lengths[job.identifier.rpartition("-")[2]])(job)

    request = {"prompt": ["x", "A prompt that is longer"], "n": 2, "max_tokens": 9}
    client = make_client(ScriptedBackend(script))

    def usage_of(**more):
        return client.post(URL, json={**request, **more}).json["usage"]

    alone = [usage_of(prompt=prompt)["prompt_tokens"] for prompt in request["prompt"]]
    assert alone[0] < alone[1]
    usage = usage_of()
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (sum(alone), 10)
    streamed = post(client, **request, stream_options={"include_usage": True})
    assert frames(streamed)[-1]["usage"] == usage


def test_streamed_choices_are_told_apart_by_index(make_client):
    bodies = frames(post(make_client(), prompt=["x", "y"], n=2, max_tokens=2))
    choices = [body["choices"][0] for body in bodies]
    for index in range(4):
        assert [c["text"] for c in choices if c["index"] == index] == ["0 ", "1 ", ""]


@pytest.mark.one_way  # a sender's writes go on while they are counted: see test_output.py
def test_what_has_piled_up_is_one_write(client):
    response = post(client, max_tokens=50)
    client.post(URL, json={"prompt": "x", "max_tokens": 100})  # by its end, the first has ended
    writes = list(response.response)
    assert b"".join(writes).count(b"data: ") == 52
    assert len(writes) <= 2  # what the status line waited for, and all that followed


def test_json_lines_and_bare_text_for_clients_that_ask_for_them(make_client):
    response = post(make_client(), "application/x-ndjson", max_tokens=2)
    bodies = [json.loads(line) for line in response.get_data().splitlines()]
    assert [b["choices"][0]["text"] for b in bodies] == ["0 ", "1 ", ""]
    response = post(make_client(), "text/plain", prompt="Say ", echo=True, max_tokens=2)
    assert response.get_data(as_text=True) == "Say 0 1 "


@pytest.mark.parametrize(
    ("accept", "mimetype"),
    [
        *(
            (accept, "text/event-stream")
            for accept in (
                *("*/*", "application/json", "text/event-stream"),
                *("application/json, text/plain", "application/json, text/plain, */*"),
            )
        ),
        ("text/plain, application/x-ndjson", "application/x-ndjson"),
        ("application/x-ndjson, text/plain", "application/x-ndjson"),
    ],
)
def test_other_clients_get_events_and_lines_come_before_text(make_client, accept, mimetype):
    assert post(make_client(), accept).mimetype == mimetype


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"n": 2}, "n"),
        ({"prompt": ["x", "y"]}, "n"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_bare_text_refuses_what_it_has_no_room_for(make_client, more, param):
    response = post(make_client(), "text/plain", **more)
    assert response.status_code == 400 and response.json["error"]["param"] == param


@pytest.mark.parametrize(
    ("accept", "ending"),
    [
        ("*/*", '"code":"job_failed"}}\n\ndata: [DONE]\n\n'),
        ("application/x-ndjson", '"code":"job_failed"}}\n'),
        ("text/plain", "0 \n[error] broken: …\n"),  # without identifiers of responses
    ],
)
def test_a_job_that_fails_midway_ends_its_stream_with_the_error(make_client, accept, ending):
    script = fails("0 ", error=engine.JobFailed(f"broken: {'a' * 32}"))
    response = post(make_client(ScriptedBackend(script)), accept)
    assert response.status_code == 200
    assert response.get_data(as_text=True).endswith(ending)


def test_one_failed_choice_ends_the_response_and_cancels_the_others(make_client):
    def script(job):
        return (fails("0 ") if job.identifier.endswith("-0") else count)(job)

    client = make_client(ScriptedBackend(script))
    assert client.post(URL, json={"prompt": "x", "n": 2, "max_tokens": 2000}).status_code == 500
    wait_until_empty(client)
    assert not client.backend.active


def test_heartbeats_come_while_a_job_waits(make_client, gate):
    writes = iter(post(make_client(ScriptedBackend(gate=gate), heartbeat=0.01)).response)
    assert next(writes).startswith(b": ")
    assert next(writes).startswith(b": ")
    gate.open()
    rest = b"".join(writes)
    assert b'"text":"0 "' in rest and rest.endswith(b"data: [DONE]\n\n")


def test_a_job_that_fails_behind_heartbeats_ends_with_an_error_event(make_client, gate):
    writes = iter(post(make_client(ScriptedBackend(fails(), gate), heartbeat=0.01)).response)
    assert next(writes).startswith(b": ")
    gate.open()
    frames = b"".join(writes).split(b"\n\n")
    error, *done = (frame for frame in frames if not frame.startswith(b": "))
    assert json.loads(error.removeprefix(b"data: "))["error"]["message"] == "no luck"
    assert done == [b"data: [DONE]", b""]


@pytest.mark.one_way
def test_bare_text_has_no_heartbeat_but_an_empty_write_sends_its_status(make_client, gate):
    client = make_client(ScriptedBackend(gate=gate), heartbeat=0.01)
    writes = iter(post(client, "text/plain", max_tokens=1).response)
    assert next(writes) == b""
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


def test_a_client_that_leaves_before_the_first_byte_cancels_its_job(make_client, gate):
    client = make_client(ScriptedBackend(gate=gate), heartbeat=0.01)
    post(client, max_tokens=2000).close()
    gate.open()
    wait_until_empty(client)
    assert "cancel" in [name for name, _ in client.backend.calls]
