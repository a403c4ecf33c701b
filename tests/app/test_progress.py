"""What a request learns while it has no text: its place in the queue, how far its prompt is."""

import json
import threading
import time

import pytest

from switchyard import engine
from switchyard.app.delivery.framing import JSON_LINES, SERVER_SENT_EVENTS, StreamWriter
from switchyard.app.delivery.progress import WithProgress
from switchyard.engine.messages import Chunk, Failed, ListPending, Prefill, Queued, Started
from tests.app.conftest import Streamed, frames, wait_until_empty
from tests.app.refused import error_of
from tests.scripted import ScriptedBackend, count, ticking

pytestmark = pytest.mark.both_ways

URL = "/v1/completions"
CHAT = "/v1/chat/completions"
LONG = {"prompt": [1, 2, 3], "max_tokens": 2000, "stream": True}
ASKED = {"prompt": "x", "max_tokens": 2, "stream": True}
MESSAGES = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "stream": True}


def long_prompt(job):
    yield Started(job.identifier)
    for done in (256, 768, 1499):
        yield Prefill(job.identifier, done, 1499, 256)
    yield from list(count(job))[1:]


@pytest.fixture
def waiting(make_client):
    """A client whose engine is busy with one job, and a stream that waits behind it."""

    def waiting(body=ASKED, **settings):
        backend = ScriptedBackend(
            lambda job: (ticking if job.max_new_tokens > 9 else long_prompt)(job), max_active=1
        )
        client = make_client(backend, heartbeat=0.05, **settings)
        client.busy = client.post(URL, json=LONG)
        next(client.busy.response)
        return client, client.post(URL, json=body)

    return waiting


def read_until(response, what):
    for part in response.response:
        if what in part:
            return part
    raise AssertionError(f"no {what}")


def test_comments_tell_the_place_in_the_queue(waiting):
    client, response = waiting()
    assert read_until(response, b"queued") == b": queued 1\n\n"
    behind = client.post(URL, json=ASKED)
    assert read_until(behind, b"queued") == b": queued 2\n\n"
    client.busy.close()
    for other in (response, behind):
        assert b"[DONE]" in read_until(other, b"[DONE]")
    wait_until_empty(client)


def test_comments_tell_the_place_of_a_job_that_waits_again(make_client):
    is_seen = threading.Event()

    def out_of_memory_once(job):
        if job.max_new_tokens > 9:
            yield from ticking(job)
        started, prefill, *more = long_prompt(job)
        yield started
        if not is_seen.is_set():
            while not is_seen.is_set():
                yield prefill
            yield Failed(job.identifier, engine.OutOfMemory("CUDA out of memory"))
        yield from more

    client = make_client(ScriptedBackend(out_of_memory_once), heartbeat=0.05)
    busy = client.post(URL, json=LONG)
    next(busy.response)
    response = client.post(URL, json=ASKED)
    read_until(response, b"prefill")
    is_seen.set()
    assert read_until(response, b"queued") == b": queued 1\n\n"
    busy.close()
    assert b"[DONE]" in read_until(response, b"[DONE]")
    wait_until_empty(client)


def test_comments_tell_how_far_the_prompt_is(make_client, gate):
    client = make_client(ScriptedBackend(long_prompt, gate), heartbeat=0.05)
    gate.step(3)
    response = client.post(URL, json=ASKED)
    assert read_until(response, b": prefill 768") == b": prefill 768/1499\n\n"
    gate.step(2)
    read_until(response, b"data: ")
    later = next(response.response)  # once there is text, nothing is told of the prompt
    assert later == b": heartbeat\n\n"
    gate.open()
    response.close()


@pytest.mark.parametrize("accept", ["application/x-ndjson", "text/plain"])
def test_other_framings_have_no_comments(make_client, accept):
    client = make_client(ScriptedBackend(long_prompt))
    response = client.post(URL, json=ASKED, headers={"Accept": accept})
    assert b"prefill" not in response.data


@pytest.mark.parametrize(("framing", "told"), [(SERVER_SENT_EVENTS, True), (JSON_LINES, False)])
def test_a_comment_tells_of_the_last_event_where_there_are_comments(framing, told):
    writer = StreamWriter(lambda events: [], framing, None, 10.0)
    for event, comment in (
        (Queued("a", 2, 5), b": queued 2\n\n"),
        (Started("a"), b""),
        (Prefill("a", 1, 3), b": prefill 1/3\n\n"),
    ):
        assert writer.write([event]) == []
        assert writer.comment == (comment if told else b"")


def test_the_engine_thread_is_asked_once_for_all_who_wait(waiting, monkeypatch):
    client, response = waiting()
    model = client.models.get()
    identifiers = [one.identifier for one in model.jobs(0) if one.state == "pending"]
    questions = []
    send = model._link.send

    def note(command):
        questions.append(command)
        send(command)

    monkeypatch.setattr(model._link, "send", note)
    told = [model.queued(i, max_age=3600) for i in identifiers for _ in range(50)]
    assert [queued.place for queued in told] == [1] * 50
    assert sum(isinstance(q, ListPending) for q in questions) <= 1
    assert model.queued("unknown", max_age=0) is None
    response.close()
    client.busy.close()


@pytest.mark.parameter("return_progress")
@pytest.mark.parametrize(("path", "body"), [(URL, ASKED), (CHAT, MESSAGES)])
def test_events_tell_the_progress_on_request(make_client, path, body):
    client = make_client(ScriptedBackend(long_prompt))
    bodies = frames(client.post(path, json={**body, "return_progress": True}))
    told = [b["prompt_progress"] for b in bodies if "prompt_progress" in b]
    assert told[-1].pop("time_ms") >= 0
    assert told[-1] == {"total": 1499, "cache": 256, "processed": 1499}
    first = bodies[0]["choices"][0]
    assert first.get("text", "") == "" and first.get("delta", {}) == {}
    assert first["finish_reason"] is None
    plain = frames(client.post(path, json=body))
    assert len(plain) + len(told) == len(bodies)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (URL, ASKED),
        (CHAT, MESSAGES),
        ("/generate", ASKED),
        ("/completion", {"prompt": "x", "n_predict": 2, "stream": True}),
        ("/api/extra/generate/stream", {"prompt": "x", "max_length": 2}),
    ],
)
def test_each_format_tells_progress_first_and_timings_last(make_client, path, body):
    client = make_client(ScriptedBackend(long_prompt))
    answer = client.post(path, json={**body, "return_progress": True, "timings": True}).text
    lines = [line[6:] for line in answer.splitlines() if line.startswith("data: {")]
    first, *_, last = bodies = list(map(json.loads, lines))
    assert first["prompt_progress"]["total"] == 1499
    assert [body for body in bodies if "timings" in body] == [last]
    assert last["timings"]["predicted_n"] == 2


def test_progress_that_piles_up_is_told_once():
    render = WithProgress(lambda events: [({}, "x")], ["a"], lambda index: {"index": index})
    events = [Started("a"), Prefill("a", 1, 3), Prefill("a", 2, 3), Chunk("a", "x", (1,))]
    (body, _), text = render(events)
    assert body["prompt_progress"]["processed"] == 2 and text == ({}, "x")


def test_each_choice_has_its_own_progress_from_its_own_start():
    render = WithProgress(lambda events: [], ["a", "b"], lambda index: {"index": index})
    list(render([Started("b")]))
    began = time.monotonic()
    while time.monotonic() < began + 0.002:
        pass
    [(body, _)] = render([Prefill("b", 1, 3)])
    assert body["index"] == 1 and body["prompt_progress"]["time_ms"] >= 2


def test_events_tell_the_place_in_the_queue_on_request(waiting):
    client, response = waiting({**ASKED, "return_progress": True})
    streamed = Streamed(response).read(1)
    told = json.loads(streamed.events[0][1])["prompt_progress"]
    assert told == {"total": 2, "cache": 0, "processed": 0, "time_ms": 0.0, "place": 1}
    client.busy.close()
    assert streamed.read().events[-1][1] == "[DONE]"


@pytest.mark.parametrize("path", [URL, "/generate"])
def test_a_whole_answer_has_no_room_for_progress(client, path):
    body = {**ASKED, "return_progress": True, "stream": False}
    assert error_of(client.post(path, json=body))["param"] == "return_progress"
