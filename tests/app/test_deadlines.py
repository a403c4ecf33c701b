"""Requests that wait too long: for their turn, for their first token, for their end."""

import math
import threading
from types import SimpleNamespace

import pytest

from switchyard import engine
from switchyard.app.delivery.reader import Reader, Submitted, deadlines
from switchyard.app.delivery.transcript import KeptTranscript, Transcript
from switchyard.app.exceptions import TimedOut
from switchyard.engine.messages import Chunk, Finished, Started
from tests.app.conftest import frames, wait_until_empty
from tests.app.test_transcript import TextWriter
from tests.scripted import ScriptedBackend, says, ticking

pytestmark = pytest.mark.both_ways

URL = "/v1/completions"
USER = {"role": "user", "content": "x"}
LONG = {"prompt": [1, 2, 3], "max_tokens": 2000}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("setting", "steps", "retry"),
    [("queue", 0, None), ("first_token", 1, "false"), ("total", 0, "false")],
)
def test_a_deadline_before_a_byte_has_its_status(make_client, gate, stream, setting, steps, retry):
    client = make_client(ScriptedBackend(gate=gate), **{f"{setting}_timeout": 0.2})
    gate.step(steps)
    response = client.post(URL, json={**LONG, "stream": stream})
    assert (response.status_code, response.headers.get("x-should-retry")) == (408, retry)
    error = response.json["error"]
    assert (error["type"], error["code"]) == ("timeout_error", f"{setting}_timeout")
    assert "0.2 seconds" in error["message"]
    assert error["usage"] == {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}
    gate.open()
    wait_until_empty(client)


CHATS = ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"]


def streamed_chat(path):
    words = {"input": "x"} if path == "/v1/responses" else {"messages": [USER], "max_tokens": 9}
    return {**words, "stream": True}


@pytest.mark.parametrize(
    ("path", "sign", "ending"),
    [
        (CHATS[0], b": ", b"data: [DONE]\n\n"),
        (CHATS[1], b"event: message_start\n", b"}\n\n"),
        (CHATS[2], b"event: response.created\n", b"}\n\n"),
        (CHATS[3], b" ", b"}\n"),
    ],
)
def test_a_chat_that_waits_for_longer_than_a_heartbeat_shows_that_it_is_served(
    make_client, gate, path, sign, ending
):
    client = make_client(ScriptedBackend(gate=gate), heartbeat=0.1, queue_timeout=2)
    response = client.post(path, json=streamed_chat(path))
    assert response.status_code == 200
    assert response.data.startswith(sign) and response.data.endswith(ending)
    events = [line for line in response.data.split(b"\n") if line.startswith(b"event: ")]
    if path == "/v1/responses":
        kinds = ("created", "in_progress", "failed")
        assert events == [b"event: response." + kind.encode() for kind in kinds]
    elif path == "/v1/messages":
        assert set(events[1:-1]) == {b"event: ping"} and events[-1] == b"event: error"


def test_without_streaming_a_deadline_tells_the_tokens_so_far(make_client, gate):
    client = make_client(ScriptedBackend(gate=gate), total_timeout=1)
    gate.step(4)  # the start and three tokens; the second prompt may be an iteration behind
    response = client.post(URL, json={**LONG, "prompt": [[1, 2, 3], [4, 5]]})
    assert response.status_code == 408
    usage, counts = response.json["error"]["usage"], client.backend.num_chunks
    assert len(counts) == 2 and min(counts.values()) >= 2
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (5, counts.total())


@pytest.mark.parametrize(
    ("accept", "ending"),
    [
        ("*/*", '"code":"total_timeout","usage":%s}}\n\ndata: [DONE]\n\n'),
        ("application/x-ndjson", '"code":"total_timeout","usage":%s}}\n'),
        ("text/plain", "0 1 \n[error] the request did not end within 1 seconds\n"),
    ],
)
def test_a_deadline_after_the_first_byte_is_an_error_event(make_client, gate, accept, ending):
    client = make_client(ScriptedBackend(gate=gate))
    gate.step(3)
    told = client.post(URL, json={**LONG, "stream": True, "timeout": 1}, headers={"Accept": accept})
    assert told.status_code == 200
    usage = '{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}'
    assert told.get_data(as_text=True).endswith(ending.replace("%s", usage))
    gate.open()
    wait_until_empty(client)


@pytest.mark.parameter("timeout")
def test_a_deadline_also_holds_while_tokens_come(make_client):
    client = make_client(ScriptedBackend(ticking))
    bodies = frames(client.post(URL, json={**LONG, "stream": True, "timeout": 1}))
    error = bodies[-1]["error"]
    assert error["code"] == "total_timeout"
    assert error["usage"]["completion_tokens"] == len(bodies) - 1 > 5
    assert client.post(URL, json={**LONG, "timeout": 0.3}).status_code == 408
    wait_until_empty(client)


def test_deadlines_that_are_met_do_not_come_back(make_client):
    client = make_client(ScriptedBackend(ticking), queue_timeout=1, first_token_timeout=1)
    assert client.post(URL, json={**LONG, "timeout": 2}).json["error"]["code"] == "total_timeout"
    wait_until_empty(client)


def test_a_job_that_computes_its_prompt_has_met_its_queues_deadline(make_client):
    """However long the prompt takes: its first token has its own deadline."""
    is_late = threading.Event()

    def script(job):
        yield Started(job.identifier)
        timer.start()
        assert is_late.wait(20)
        yield from says("x")(job)

    timer = threading.Timer(1.5, is_late.set)
    none = {"first_token_timeout": 0, "total_timeout": 0}
    response = make_client(ScriptedBackend(script), queue_timeout=0.5, **none).post(URL, json=LONG)
    timer.join()
    assert response.status_code == 200, response.json


@pytest.mark.parametrize(
    ("timeout", "status"), [(10, 200), (10.5, 400), (0, 400), ("5", 400), (float("inf"), 400)]
)
def test_a_timeout_above_the_servers_is_refused(make_client, timeout, status):
    response = make_client(total_timeout=10).post(URL, json={"prompt": "x", "timeout": timeout})
    assert response.status_code == status
    assert status == 200 or response.json["error"]["param"] == "timeout"


def test_no_limit_is_zero(make_client):
    client = make_client(queue_timeout=0, first_token_timeout=0, total_timeout=0)
    assert client.post(URL, json={"prompt": "x", "timeout": 20}).status_code == 200


class Taken:
    """A stream that has these events, one at a time. It knows how long its reader would wait."""

    is_finished = False

    def __init__(self, *events):
        self._events = list(events)
        self.waits = []

    def take(self, timeout):
        self.waits.append(timeout)
        return [self._events.pop(0)] if self._events else []

    @property
    def has_events(self):
        return bool(self._events)


@pytest.fixture
def now(monkeypatch):
    """A list of the time that readers go by."""
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("switchyard.app.delivery.reader.time", clock)
    return now


def submitted(stream):
    """With deadlines after 1, 3 and 10 seconds."""
    ahead = deadlines(1.0, 3.0, 10.0)
    return Submitted(stream, ["cmpl-1-0"], ahead, 3, "req", lambda _: None, math.inf)


@pytest.fixture
def reading():
    """A stream, and a reader of it."""
    stream = engine.Stream(["cmpl-1-0"], lambda _: None)
    return stream, Reader(submitted(stream))


def chunk(text, *token_ids):
    return Chunk("cmpl-1-0", text, token_ids or (1,))


@pytest.mark.parametrize(
    ("event", "wait"),
    [
        (Started("cmpl-1-0"), 1.0),
        (chunk("x"), 8.0),
        (Finished("cmpl-1-0", "stop", 3, 0, 0), 8.0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_deadline_that_was_met_shortens_no_wait(now, event, wait):
    stream = Taken(event)
    reader = Reader(submitted(stream))
    for now[0] in (0.0, 2.0):  # after the first the job is no longer in the queue
        reader.take_events(20.0)
    assert stream.waits == [1.0, wait]


def job_events(*texts):
    return [Started("cmpl-1-0"), *map(chunk, texts)]


def test_a_late_reader_takes_what_has_come_and_only_then_meets_the_deadline(now, reading):
    stream, reader = reading
    stream.put([*job_events("a"), chunk("b", 1, 2)])
    now[0] = 20.0
    assert [event.text for event in reader.take_events(20)[1:]] == ["a", "b"]
    stream.put([chunk("c")])  # tokens go on, the request doesn't
    with pytest.raises(TimedOut) as late:
        reader.take_events(20)
    assert late.value.code == "total_timeout"
    assert late.value.usage == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}


def test_a_late_reader_gets_an_answer_that_has_ended(now, reading):
    stream, reader = reading
    stream.put([*job_events("a"), Finished("cmpl-1-0", "stop", 3, 1, 0)])
    now[0] = 20.0
    assert len(reader.take_events(20)) == 3 and reader.has_ended


def test_each_deadline_that_a_late_reader_meets_leaves_it_one_take(now, reading):
    stream, reader = reading
    stream.put(job_events("a"))
    now[0] = 5.0
    assert len(reader.take_events(20)) == 2
    stream.put([chunk("b")])
    now[0] = 20.0
    assert [event.text for event in reader.take_events(20)] == ["b"]
    with pytest.raises(TimedOut):
        reader.take_events(20)


@pytest.mark.parametrize("is_by_the_sender", [False, True])
def test_the_error_of_a_deadline_stands_behind_all_text_so_far(now, reading, is_by_the_sender):
    stream, _ = reading
    transcript = Transcript(submitted(stream), TextWriter())
    stream.put([chunk("a")])
    assert transcript.take(0, 20) == [b"a"]
    if is_by_the_sender:
        transcript.notify(lambda: None)
    stream.put([chunk("b"), chunk("c")])
    now[0] = 20.0
    written, take = [], transcript.take_now if is_by_the_sender else transcript.take
    while not transcript.is_finished:
        written += take(0, 20.0)
    assert written == [b"b", b"c", b"the request did not end within 10 seconds"]


def test_a_deadline_ends_a_kept_stream_that_the_sender_writes(now, reading):
    transcript = KeptTranscript(submitted(reading[0]), TextWriter(), 60.0)
    assert transcript.join()
    transcript.notify(lambda: None)
    assert transcript.take_now(0, 0.5) == [] and not transcript.is_finished
    now[0] = 20.0
    assert len(transcript.take_now(0, 20.0)) == 1
    assert transcript.is_finished and isinstance(transcript.error, TimedOut)


def test_a_fault_in_the_writing_does_not_hide_a_deadline(now, reading):
    transcript = Transcript(submitted(reading[0]), TextWriter())
    transcript.writer.write = lambda events: 1 / 0
    now[0] = 20.0
    transcript.take(0, 20.0)
    assert isinstance(transcript.error, TimedOut)
