"""Who drives an answer, when several threads read it."""

import queue
import threading

import pytest

from switchyard.app.delivery.transcript import Transcript
from switchyard.engine.messages import Chunk

FOR_EVER = 3600


class ScriptedReader:
    """Whose every `take` a test answers; `num_inside` of them wait for that."""

    identifier = "a"

    def __init__(self):
        self.is_finished = False
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

    def notify(self, wake, alone):
        assert not alone

    def wait_until_entered(self):
        assert self.entered.acquire(timeout=20)

    def give(self, *texts):
        self._answers.put([Chunk("a", text, (1,)) for text in texts])

    def finish(self):
        self.is_finished = True
        self.give()

    def close(self):
        self.is_closed.set()


class TextWriter:
    mimetype = "text/plain"
    heartbeat = b""
    is_numbered = False

    def write(self, events):
        return [event.text.encode() for event in events]

    def end(self):
        return [b"end"]

    def fail(self, error):
        return [str(error).encode()]


@pytest.fixture
def reader():
    return ScriptedReader()


@pytest.fixture
def start():
    """Call in a thread of its own; the result comes through the queue."""
    threads = []

    def start(call, *args):
        results = queue.Queue()
        threads.append(threading.Thread(target=lambda: results.put(call(*args))))
        threads[-1].start()
        return results

    yield start
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def transcript_of(reader, num_readers=1, keep=FOR_EVER):
    transcript = Transcript(reader, TextWriter(), keep)
    for _ in range(num_readers):
        assert transcript.join()
    return transcript


def test_one_thread_takes_for_all(reader, start):
    transcript = transcript_of(reader, 2)
    first = start(transcript.take, 0, 20)
    reader.wait_until_entered()
    assert transcript.take(0, 0.05) == []  # it waits for the first, and no longer than it may
    assert reader.num_inside == 1
    second = start(transcript.take, 0, 20)
    reader.give("x")
    assert first.get(timeout=20) == second.get(timeout=20) == [b"x"]
    third = start(transcript.take, 1, 20)  # anybody is the next
    reader.wait_until_entered()
    reader.finish()
    assert third.get(timeout=20) == [b"end"]
    assert transcript.is_finished and reader.is_closed.is_set()


def test_who_waits_takes_over_from_one_that_took_nothing(reader, start):
    transcript = transcript_of(reader, 2)
    first = start(transcript.take, 0, 20)
    reader.wait_until_entered()
    second = start(lambda: transcript.take(0, 20) or transcript.take(0, 20))
    reader.give()
    assert first.get(timeout=20) == []
    reader.wait_until_entered()
    reader.give("x")
    assert second.get(timeout=20) == [b"x"]


def test_one_thread_at_most_goes_on_without_readers(reader, start):
    """Else a client that comes and goes would take all threads."""
    transcript = transcript_of(reader)
    keeper = start(transcript.leave)
    reader.wait_until_entered()
    for _ in range(3):
        assert transcript.join()
        transcript.leave()  # returns, since there is somebody
    assert reader.num_inside == 1
    reader.finish()
    keeper.get(timeout=20)
    assert transcript.take(0, 0) == [b"end"]


def test_who_is_notified_hears_of_what_a_thread_without_a_client_takes(reader, start):
    transcript = transcript_of(reader)
    keeper = start(transcript.leave)
    reader.wait_until_entered()
    woken = threading.Event()
    assert transcript.join()
    transcript.notify(woken.set)
    reader.give("x")
    assert woken.wait(20)
    keeper.get(timeout=20)
    assert transcript.take(0, 0) == [b"x"]


def test_a_fault_in_the_writing_ends_the_answer(reader, start):
    transcript = transcript_of(reader, 2)
    transcript.writer.write = lambda events: 1 / 0
    first = start(transcript.take, 0, 20)
    reader.wait_until_entered()
    reader.give("x")
    assert first.get(timeout=20) == [b"division by zero"]
    assert transcript.is_finished and reader.is_closed.is_set()
    assert isinstance(transcript.error, ZeroDivisionError)


def test_what_is_not_kept_is_forgotten_once_taken(reader, start):
    transcript = transcript_of(reader, keep=0)
    reader.give("x", "y")
    assert transcript.take(0, 20) == [b"x", b"y"]
    reader.give("z")
    assert transcript.take(0, 20) == [b"z"]
    assert transcript.num_frames == 0 and transcript.num_bytes == 3
    transcript.leave()
    assert reader.is_closed.is_set() and not transcript.join()
