"""Who drives an answer, when several threads read it."""

import math
import queue
import threading
from concurrent import futures

import pytest

from switchyard.app.delivery.reader import Submitted
from switchyard.app.delivery.transcript import KeptTranscript, Transcript
from switchyard.engine.messages import Chunk


class ScriptedStream:
    """Whose every `take` a test answers; `num_inside` of them wait for that."""

    def __init__(self):
        self.is_finished = False
        self.has_events = True
        self.is_closed = threading.Event()
        self.num_inside = 0
        self.entered = threading.Semaphore(0)
        self._answers = queue.Queue()

    def take(self, timeout):
        self.num_inside += 1
        self.entered.release()
        events = self._answers.get(timeout=20)
        self.num_inside -= 1
        return events

    def poll(self, wake, alone):
        assert not alone

    def wait_until_entered(self):
        assert self.entered.acquire(timeout=20)

    def give(self, *texts):
        self._answers.put([Chunk("a-0", text, (1,)) for text in texts])

    def finish(self):
        self.is_finished = True
        self.give()

    def close(self):
        self.is_closed.set()


class TextWriter:
    mimetype = "text/plain"
    is_streamed = True
    heartbeat = b""
    is_numbered = False

    def write(self, events):
        return [event.text.encode() for event in events]

    def end(self):
        return [b"end"]

    def fail(self, error):
        return [str(error).encode()]


@pytest.fixture
def stream():
    return ScriptedStream()


@pytest.fixture
def start():
    """Calls in its own thread."""
    with futures.ThreadPoolExecutor() as pool:
        yield pool.submit


def submitted(stream):
    return Submitted(stream, ["a-0"], {}, 1, "request", lambda identifier: None, math.inf)


def transcript_of(stream, num_readers=1):
    transcript = KeptTranscript(submitted(stream), TextWriter(), keep=3600)
    for _ in range(num_readers):
        assert transcript.join()
    return transcript


def test_one_thread_takes_for_all(stream, start):
    transcript = transcript_of(stream, 2)
    first = start(transcript.take, 0, 20)
    stream.wait_until_entered()
    assert transcript.take(0, 0.05) == []  # it waits for the first, and no longer than it may
    assert stream.num_inside == 1
    second = start(transcript.take, 0, 20)
    stream.give("x")
    assert first.result(20) == second.result(20) == [b"x"]
    third = start(transcript.take, 1, 20)  # anybody is the next
    stream.wait_until_entered()
    stream.finish()
    assert third.result(20) == [b"end"]
    assert transcript.is_finished and stream.is_closed.is_set()


def test_who_waits_takes_over_from_one_that_took_nothing(stream, start):
    transcript = transcript_of(stream, 2)
    first = start(transcript.take, 0, 20)
    stream.wait_until_entered()
    second = start(lambda: transcript.take(0, 20) or transcript.take(0, 20))
    stream.give()
    assert first.result(20) == []
    stream.wait_until_entered()
    stream.give("x")
    assert second.result(20) == [b"x"]


def test_one_thread_at_most_goes_on_without_readers(stream, start):
    """Otherwise a client that comes and goes would take all threads."""
    transcript = transcript_of(stream)
    keeper = start(transcript.leave)
    stream.wait_until_entered()
    for _ in range(3):
        assert transcript.join()
        transcript.leave()  # returns, since there is somebody
    assert stream.num_inside == 1
    stream.finish()
    keeper.result(20)
    assert transcript.take(0, 0) == [b"end"]


def test_a_client_that_comes_and_leaves_later_is_waited_for_again(stream, start):
    transcript = transcript_of(stream)
    for text in ("x", "y"):
        keeper = start(transcript.leave)
        stream.wait_until_entered()
        assert transcript.join()
        stream.give(text)
        keeper.result(20)
    assert transcript.take(0, 0) == [b"x", b"y"]


def test_who_is_notified_hears_of_what_a_thread_without_a_client_takes(stream, start):
    transcript = transcript_of(stream)
    keeper = start(transcript.leave)
    stream.wait_until_entered()
    woken = threading.Event()
    assert transcript.join()
    transcript.notify(woken.set)
    stream.give("x")
    assert woken.wait(20)
    keeper.result(20)
    assert transcript.take(0, 0) == [b"x"]


def test_a_fault_in_the_writing_ends_the_answer(stream, start):
    transcript = transcript_of(stream, 2)
    transcript.writer.write = lambda events: 1 / 0
    first = start(transcript.take, 0, 20)
    stream.wait_until_entered()
    stream.give("x")
    assert first.result(20) == [b"division by zero"]
    assert transcript.is_finished and stream.is_closed.is_set()
    assert isinstance(transcript.error, ZeroDivisionError)


def test_what_is_not_kept_is_forgotten_once_taken(stream):
    transcript = Transcript(submitted(stream), TextWriter())
    stream.give("x", "y")
    assert transcript.take(0, 20) == [b"x", b"y"]
    stream.give("z")
    assert transcript.take(2, 20) == [b"z"]
    stream.finish()
    assert transcript.take(3, 20) == [b"end"]
    assert transcript.is_read(4) and stream.is_closed.is_set()


def test_what_is_not_kept_ends_with_its_client(stream):
    transcript = Transcript(submitted(stream), TextWriter())
    transcript.leave()
    assert transcript.is_read(0) and stream.is_closed.is_set()
