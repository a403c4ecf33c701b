"""The engine over a scripted backend: each stream gets its own events."""

import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from switchyard import engine
from switchyard.engine.messages import Chunk, Finished, Started
from tests.engine.conftest import over_all_links
from tests.engine.failing import begin
from tests.engine.reading import take_all, text
from tests.scripted import ScriptedBackend, finished, job, slow


@over_all_links
def test_a_job_gets_its_events_in_order_and_exactly_one_end(make_engine):
    stream = make_engine(ScriptedBackend()).submit([job("a", 3)])
    events = take_all(stream)
    assert [type(event) for event in events] == [Started, Chunk, Chunk, Chunk, Finished]
    assert text(events) == "0 1 2 "
    assert stream.take(20) == []  # at once: nothing can follow


def named(job):
    for i in range(50):
        yield Chunk(job.identifier, f"{job.identifier}:{i} ", (i,))
    yield finished(job, 50)


@over_all_links
def test_each_of_many_threads_gets_its_own_events(make_engine):
    model = make_engine(ScriptedBackend(named), max_batch_size=200)
    barrier = threading.Barrier(200)

    def request(number):
        barrier.wait(20)
        return text(take_all(model.submit([job(f"job{number}", 50)])))

    with ThreadPoolExecutor(200) as threads:
        texts = list(threads.map(request, range(200)))
    assert texts == ["".join(f"job{i}:{k} " for k in range(50)) for i in range(200)]


def test_all_calls_of_the_backend_come_from_one_thread(make_engine):
    backend = ScriptedBackend()
    model = make_engine(backend)
    streams = [model.submit([job(f"job{i}")]) for i in range(8)]
    model.submit([job("cancelled", 1000)]).close()
    for stream in streams:
        take_all(stream)
    model.close(timeout=20)
    names = {name for name, _ in backend.calls}
    assert names >= {"open", "has_room", "enqueue", "iterate", "occupancy", "close"}
    assert len({thread for _, thread in backend.calls}) == 1
    assert threading.get_ident() not in {thread for _, thread in backend.calls}


@over_all_links
def test_the_choices_of_one_request_share_a_stream(make_engine):
    stream = make_engine(ScriptedBackend()).submit([job("a", 2), job("b", 3)])
    events = take_all(stream)
    assert text(e for e in events if e.identifier == "a") == "0 1 "
    assert text(e for e in events if e.identifier == "b") == "0 1 2 "
    assert sum(isinstance(event, Finished) for event in events) == 2


def test_a_thread_that_reads_several_streams_is_woken_by_each(make_engine, gate):
    model = make_engine(ScriptedBackend(gate=gate))
    woken = threading.Event()
    streams = [model.submit([job(name, 2)], woken.set) for name in ("a", "b")]
    gate.open()
    texts = ["", ""]
    while not all(stream.is_finished for stream in streams):
        assert woken.wait(20)
        woken.clear()
        for i, stream in enumerate(streams):
            texts[i] += text(stream.take(0))
    assert texts == ["0 1 ", "0 1 "]


def test_a_thread_that_reads_several_streams_is_woken_once_an_iteration(make_engine, gate):
    model = make_engine(ScriptedBackend(gate=gate))
    streams = [model.submit([job("a", 2)])]
    gate.wait_until_held()  # in the first iteration, which is of a alone
    streams += [model.submit([job(name, 2)]) for name in ("b", "c")]
    counts = []  # of the events that are there at each call

    def wake():
        counts.append(sum(len(stream.take(0)) for stream in streams))

    for stream in streams:
        stream.poll(wake, alone=True)
    gate.open()
    take_all(model.submit([job("d", 20)]))  # ends after them
    assert counts == [1, 3, 3, 3, 2]


@over_all_links
def test_tokens_wake_nobody_who_is_patient(make_engine):
    stream = make_engine(ScriptedBackend(slow)).submit([job("a", 100)])
    stream.is_patient = True
    events, num_takes = [], 0
    while not stream.is_finished:
        events += stream.take(120)
        num_takes += 1
    assert text(events) == "x" * 100
    assert num_takes < 20


@pytest.mark.parametrize("take", ["take", "take_now"])
def test_what_comes_while_events_are_taken_waits_for_the_next_time(take):
    """However fast it comes."""

    class Batch(list):
        def __iter__(self):
            if len(puts) < 1000:
                puts.append(self)
                stream.put(Batch([Chunk("a", "x", (1,))]))
            return super().__iter__()

    stream, puts = engine.Stream(["a"], cancel=lambda _: None), []
    stream.put(Batch([Chunk("a", "x", (1,))]))
    stream.put(Batch([Chunk("a", "x", (1,))]))
    assert len(getattr(stream, take)()) < 10
    assert len(getattr(stream, take)()) < 10


def test_a_stream_that_one_thread_polls_may_have_another_that_waits(make_engine, gate):
    stream = make_engine(ScriptedBackend(gate=gate)).submit([job("a", 20)])
    woken = threading.Semaphore(0)
    stream.poll(woken.release, alone=False)
    taken = queue.Queue()

    def wait():
        while not stream.is_finished:
            taken.put(stream.take(60))

    waiting = begin(wait)
    for _ in range(22):  # with its start and its end
        gate.step()
        assert taken.get(timeout=20)  # long before the time of a wait is over
        assert woken.acquire(timeout=20)
    waiting.join()
