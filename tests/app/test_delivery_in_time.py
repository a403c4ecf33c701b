"""What a delivery does only in time, or at a cost that no answer tells."""

import math
from types import SimpleNamespace

import pytest

from switchyard.app.delivery import reader as reading
from switchyard.app.delivery.reader import Reader, Submitted
from switchyard.app.delivery.sender import RETRY, Outlet
from switchyard.app.delivery.watch import LOOK
from switchyard.app.services import KEY
from switchyard.engine.messages import Chunk, PutBack, Queued
from tests.app.test_transcript import ScriptedStream, transcript_of

# The sender


class Output:
    """Frames as a test puts them there, to a client whose socket has room for `room` bytes."""

    patience, is_finished = 2.0, False

    def __init__(self, room=10**6):
        self.client = self
        self.frames, self.room, self.num_looks, self.sent = [], room, 0, b""

    def check(self):
        self.num_looks += 1

    def num_untaken(self):
        return 0

    def send(self, data):
        count = min(len(data), self.room)
        self.sent += bytes(data[:count])
        return count

    def take_now(self, now):
        return self.frames.pop(0) if self.frames else b""

    def take(self, now):
        return None


def test_an_idle_stream_has_a_turn_with_each_look_and_no_more():
    output = Output()
    outlet = Outlet(output, 60.0)
    for now, num_looks in ((100.0, 1), (100.1, 1), (100.0 + LOOK, 2), (100.1 + LOOK, 2)):
        assert not outlet.write(now)
        assert output.num_looks == num_looks
        assert outlet.next_turn == 100.0 + num_looks * LOOK
    output.patience = 0.01  # a heartbeat is due before
    outlet.write(200.0)
    outlet.write(200.0 + LOOK)
    assert outlet.next_turn == pytest.approx(200.01 + LOOK)


def test_a_full_socket_is_tried_again_after_a_while():
    output = Output(room=0)
    outlet = Outlet(output, 60.0)
    outlet.write(100.0)
    output.frames = [b"text"]
    assert not outlet.write(100.1)
    assert outlet.next_turn == pytest.approx(100.1 + RETRY) and output.sent == b""
    output.room = 10**6
    outlet.write(100.1 + RETRY / 2)
    assert output.sent == b""  # not before
    outlet.write(100.1 + RETRY)
    assert output.sent == b"4\r\ntext\r\n"


def test_a_client_has_its_time_anew_when_it_has_taken_all():
    output = Output()
    outlet = Outlet(output, 5.0)
    for now, num_untaken in ((100.0, 4), (101.0, 0), (200.0, 9)):
        output.num_untaken = lambda number=num_untaken: number
        outlet._num_sent += num_untaken
        assert not outlet.write(now)


# Transcripts


@pytest.mark.parametrize(("num_readers", "num_wakes"), [(1, 0), (2, 1)])
def test_the_sender_is_woken_for_what_another_may_have_taken(num_readers, num_wakes):
    stream = ScriptedStream()
    transcript = transcript_of(stream, num_readers)
    wakes = []
    transcript.notify(lambda: wakes.append(1))
    stream.give("x")
    assert transcript.take_now(0, 0.0) == [b"x"]
    assert len(wakes) == num_wakes


def test_who_goes_on_without_a_client_sleeps_between_looks():
    stream, timeouts = ScriptedStream(), []

    def take(timeout):
        timeouts.append(timeout)
        stream.is_finished = len(timeouts) == 3
        return []

    stream.take = take
    transcript_of(stream).leave()
    assert timeouts == [LOOK] * 3


# Questions where a job stands


def test_a_place_is_asked_for_once_an_interval_and_told_when_it_has_changed(monkeypatch):
    now, asked, places = [0.0], [], [3, 3, 2]
    monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def queued(identifier):
        asked.append(now[0])
        return Queued(identifier, places.pop(0), 5)

    stream = SimpleNamespace(take=lambda timeout: [], is_finished=False)
    reader = Reader(Submitted(stream, ["r-0"], {}, 5, "request", queued, 10.0))
    told = []
    for step in range(35):
        now[0] = float(step)
        told += [(step, event.place) for event in reader.take_events(1.0)]
    assert asked == [10.0, 20.0, 30.0] and told == [(10, 3), (30, 2)]


def test_no_place_is_told_behind_text():
    chunk, back = Chunk("r-0", "x", (1,)), PutBack("r-0")
    stream = SimpleNamespace(take=lambda timeout: [chunk, back], is_finished=False)
    reader = Reader(Submitted(stream, ["r-0"], {}, 5, "r", lambda i: Queued(i, 1, 5), 0.0))
    told = [reader.take_events(1.0) for _ in range(3)]
    assert told == [[Queued("r-0", 1, 5)], [chunk, back], [chunk, back]]


def test_no_place_is_asked_for_where_none_could_be_told(make_client, monkeypatch):
    client = make_client(heartbeat=10.0)
    answers, intervals = client.application.extensions[KEY].answers, {}

    def noted(name, make):
        def note(submitted, *rest):
            intervals[name] = submitted.interval
            return make(submitted, *rest)

        monkeypatch.setattr(answers, name, note)

    for name in ("whole", "stream"):
        noted(name, getattr(answers, name))
        body = {"prompt": "x", "max_tokens": 1, "stream": name == "stream"}
        client.post("/v1/completions", json=body).get_data()
    assert intervals == {"whole": math.inf, "stream": 2.0}


# Borders of headers


def test_names_of_answers_have_their_bounds(make_client):
    client = make_client(resume_timeout=5.0)
    for name, value, status in (
        *(("Idempotency-Key", "k" * n, 200) for n in (1, 255)),
        *(("Idempotency-Key", "k" * n, 400) for n in (0, 256)),
        ("Last-Event-ID", f"cmpl-x:{'9' * 9}", 404),
        *(("Last-Event-ID", f"cmpl-x:{n}", 400) for n in ("9" * 10, "9" * 5000, "\xd9\xa3")),
    ):
        asked = {"json": {"prompt": "x", "max_tokens": 1}, "headers": {name: value}}
        response = client.post("/v1/completions", **asked)
        assert response.status_code == status, value
        if status == 400 and name == "Idempotency-Key":
            error = response.json["error"]
            assert (error["param"], error["code"]) == (name, "invalid_value")
    assert len(client.backend.enqueued) == 2
