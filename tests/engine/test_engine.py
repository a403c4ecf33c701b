"""Engine, Stream and EngineThread together, over a scripted backend."""

import contextlib
import functools
import gc
import queue
import threading
import weakref

import pytest

from switchyard import engine
from switchyard.engine.config import ModelConfig
from switchyard.engine.engine import Engine
from switchyard.engine.grammar import constraints
from switchyard.engine.grammar.grammars import Grammars
from switchyard.engine.links.thread import EngineThread
from switchyard.engine.messages import (
    Chunk,
    Failed,
    Finished,
    Loaded,
    ModelInfo,
    PendingList,
    Started,
)
from tests.engine.conftest import over_all_links
from tests.scripted import Gate, Panic, ScriptedBackend, count, endless, finished, job, slow


def take_all(stream):
    events = []
    while not stream.is_finished:
        taken = stream.take(120)
        assert taken, "no event in 120 s"
        events += taken
    return events


def text(events):
    return "".join(event.text for event in events if isinstance(event, Chunk))


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
    texts = {}

    def request(name):
        barrier.wait(20)
        texts[name] = text(take_all(model.submit([job(name, 50)])))

    threads = [threading.Thread(target=request, args=(f"job{i}",)) for i in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert texts == {f"job{i}": "".join(f"job{i}:{k} " for k in range(50)) for i in range(200)}


def test_all_calls_of_the_backend_come_from_one_thread(make_engine):
    backend = ScriptedBackend()
    model = make_engine(backend)
    streams = [model.submit([job(f"job{i}")]) for i in range(8)]
    streams.append(model.submit([job("cancelled", 1000)]))
    streams.pop().close()
    for stream in streams:
        take_all(stream)
    model.close(timeout=20)
    names = {name for name, _ in backend.calls}
    assert names >= {"open", "has_room", "enqueue", "iterate", "close"}
    assert len({thread for _, thread in backend.calls}) == 1
    assert threading.get_ident() not in {thread for _, thread in backend.calls}


@over_all_links
def test_the_choices_of_one_request_share_a_stream(make_engine):
    stream = make_engine(ScriptedBackend()).submit([job("a", 2), job("b", 3)])
    events = take_all(stream)
    assert text(e for e in events if e.identifier == "a") == "0 1 "
    assert text(e for e in events if e.identifier == "b") == "0 1 2 "
    assert sum(isinstance(event, Finished) for event in events) == 2


@over_all_links
def test_events_that_pile_up_are_taken_together(make_engine):
    model = make_engine(ScriptedBackend())
    first = model.submit([job("a", 100)])
    take_all(model.submit([job("b", 200)]))  # so by now all of a's events are there
    assert len(first.take(0)) == 102
    assert first.is_finished


def test_a_thread_that_reads_several_streams_is_woken_by_each(make_engine):
    gate = Gate()
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


def test_a_thread_that_reads_several_streams_is_woken_once_an_iteration(make_engine):
    gate = Gate()
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


def test_a_stream_that_one_thread_polls_may_have_another_that_waits(make_engine):
    gate = Gate()
    stream = make_engine(ScriptedBackend(gate=gate)).submit([job("a", 20)])
    woken = threading.Semaphore(0)
    stream.poll(woken.release, alone=False)
    taken = queue.Queue()

    def wait():
        while not stream.is_finished:
            taken.put(stream.take(60))

    waiting = threading.Thread(target=wait)
    waiting.start()
    for _ in range(22):  # with its start and its end
        gate.step()
        assert taken.get(timeout=20)  # long before the time of a wait is over
        assert woken.acquire(timeout=20)
    waiting.join()


def test_a_full_engine_refuses_and_takes_jobs_again_once_one_ends(make_engine):
    gate = Gate()
    model = make_engine(ScriptedBackend(gate=gate), max_batch_size=1, max_pending=1)
    streams = [model.submit([job("a", 1)]), model.submit([job("b", 1)])]
    with pytest.raises(engine.Full, match="2 jobs are active or wait, of 2"):
        model.submit([job("c", 1)])
    with pytest.raises(engine.Full):
        model.check_room(1)
    gate.open()
    for stream in streams:
        take_all(stream)
    take_all(model.submit([job("c", 1)]))


def test_waiting_prompt_tokens_are_bounded_before_and_after_tokenizing(make_engine):
    gate = Gate()
    model = make_engine(ScriptedBackend(gate=gate, max_active=1), max_pending_tokens=10)
    streams = [model.submit([job("a", 1, prompt=(1,) * 50)])]  # nothing waits
    gate.wait_until_held()
    gate.step()
    gate.wait_until_held()
    streams.append(model.submit([job("b", 1, prompt=(1,) * 6)]))
    with pytest.raises(engine.Full, match="6 prompt tokens wait, of 10"):
        model.check_room(1, 5)
    with pytest.raises(engine.Full):
        model.submit([job("c", 1, prompt=(1,) * 2), job("d", 1, prompt=(1,) * 3)])
    streams.append(model.submit([job("c", 1, prompt=(1,) * 4)]))
    gate.open()
    for stream in streams:
        take_all(stream)


@pytest.mark.parametrize(("pace", "seconds"), [(0.01, 1.0), (2.0, 10.0), (100.0, 120.0)])
def test_a_full_engine_tells_how_long_its_queue_takes(make_engine, monkeypatch, pace, seconds):
    clock = Clock()
    for module in ("engine", "held"):
        monkeypatch.setattr(f"switchyard.engine.{module}.time", clock)
    gate = Gate()
    model = make_engine(ScriptedBackend(gate=gate, max_active=1), max_batch_size=1, max_pending=4)
    for i in range(40):  # a job every `pace` seconds
        stream = model.submit([job(f"before{i}", 1)])
        clock.now += pace
        gate.step(3)
        take_all(stream)
    clock.now += 1000.0  # idle
    streams = [model.submit([job("active", 1)])]
    for _ in range(40 * 3 + 1):
        gate.wait_until_held()
    gate.step()
    gate.wait_until_held()
    streams += [model.submit([job(f"job{i}", 1)]) for i in range(4)]
    with pytest.raises(engine.Full) as caught:
        model.check_room(1)
    assert caught.value.retry_after == pytest.approx(seconds, rel=0.1)
    gate.open()
    for stream in streams:
        take_all(stream)


class Clock:
    """In place of the time module."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


def test_a_request_of_several_jobs_is_taken_whole_or_not_at_all(make_engine):
    gate = Gate()
    backend = ScriptedBackend(gate=gate)
    model = make_engine(backend, max_batch_size=1, max_pending=2)
    stream = model.submit([job("a", 1)])
    with pytest.raises(engine.Full):
        model.submit([job("b"), job("c"), job("d")])
    assert model.num_jobs == 1
    gate.open()
    take_all(stream)
    assert [j.identifier for j in backend.enqueued] == ["a"]


def test_more_choices_than_the_engine_ever_holds_are_the_requests_own_fault(make_engine):
    model = make_engine(ScriptedBackend(), max_batch_size=2, max_pending=1)
    with pytest.raises(engine.InvalidJob, match="4 choices are more than the 3 jobs"):
        model.check_room(4)


def started(make_engine, jobs, has_room=lambda active, job: not active):
    """The order in which `jobs`, which all wait, start."""
    gate = Gate()
    backend = ScriptedBackend(gate=gate)
    model = make_engine(backend, max_priority=1)
    model.submit([job("first", 1)])
    gate.wait_until_held()
    backend.has_room = lambda job: has_room(backend.active, job)
    streams = [model.submit([one]) for one in jobs]
    gate.open()
    for stream in streams:
        take_all(stream)
    return [j.identifier for j in backend.enqueued[1:]]


def test_equal_jobs_start_in_the_order_of_their_arrival(make_engine):
    names = [f"job{i}" for i in range(5)]
    assert started(make_engine, [job(name, 1) for name in names]) == names


def test_waiting_jobs_start_by_priority_then_share_then_length(make_engine):
    jobs = [
        job("long", 30, client="x"),
        job("short", 10, client="x"),
        job("other", 40, client="y"),
        job("urgent", 50, client="x", priority=1),
        job("background", 50, client="z", priority=-1),
    ]
    expected = ["urgent", "short", "other", "long", "background"]
    assert started(make_engine, jobs) == expected


def test_a_smaller_job_starts_while_the_best_one_has_no_room(make_engine):
    def has_room(active, job):
        return not active or job.identifier == "small"

    jobs = [job("big", 90, priority=1), job("small", 10)]
    assert started(make_engine, jobs, has_room) == ["small", "big"]


def test_closing_a_stream_cancels_its_active_job_and_frees_its_place(make_engine):
    backend = ScriptedBackend(lambda job: (endless if job.identifier == "a" else count)(job))
    model = make_engine(backend, max_batch_size=1, max_pending=0)
    stream = model.submit([job("a")])
    assert isinstance(stream.take(20)[0], Started)
    stream.close()
    wait_until_empty(model)
    assert "cancel" in [name for name, _ in backend.calls]
    assert not backend.active
    take_all(model.submit([job("b", 1)]))


def test_closing_a_stream_removes_its_waiting_job(make_engine):
    gate = Gate()
    backend = ScriptedBackend(gate=gate, max_active=1)
    model = make_engine(backend)
    first = model.submit([job("a", 2)])
    model.submit([job("b", 2)]).close()
    gate.open()
    take_all(first)
    wait_until_empty(model)
    assert [j.identifier for j in backend.enqueued] == ["a"]


def test_a_closed_stream_keeps_nothing_that_still_comes(make_engine):
    stream = make_engine(ScriptedBackend()).submit([job("a", 3)])
    stream.close()
    stream.close()
    stream.put([Chunk("a", "late", (1,))])
    assert text(stream.take(0)) != "late"


def test_cancel_by_identifier_tells_the_reader_what_was_generated(make_engine):
    gate = Gate()
    model = make_engine(ScriptedBackend(gate=gate))
    stream = model.submit([job("a", 100)])
    gate.step(3)
    for _ in range(4):
        gate.wait_until_held()
    assert model.cancel("a")
    gate.open()
    events = take_all(stream)
    assert text(events) == "0 1 2 "
    assert events[-1] == Finished("a", "cancelled", 3, 3, 0)
    assert not model.cancel("a") and not model.cancel("never")


def test_cancel_of_a_waiting_job_tells_its_reader_so(make_engine):
    gate = Gate()
    model = make_engine(ScriptedBackend(gate=gate, max_active=1))
    model.submit([job("a")])
    gate.wait_until_held()
    stream = model.submit([job("b")])
    assert model.cancel("b")
    gate.open()
    assert take_all(stream) == [Finished("b", "cancelled", 3, 0, 0)]


def test_jobs_tells_state_place_counts_and_pages(make_engine):
    gate = Gate()
    model = make_engine(ScriptedBackend(gate=gate, max_active=1), max_priority=7)
    model.submit([job("a", 300, priority=7)])
    gate.wait_until_held()
    for name in ("b", "c"):
        model.submit([job(name, prompt=(1, 2, 3, 4))])
    a, b, c = told(model, gate)
    assert [j.identifier for j in (a, b, c)] == ["a", "b", "c"]
    assert (a.state, a.place, a.num_pages, a.priority) == ("prefill", None, 2, 7)
    assert [(j.state, j.place, j.num_pages) for j in (b, c)] == [
        ("pending", 1, 0),
        ("pending", 2, 0),
    ]
    a, b, c = told(model, gate)
    assert (a.state, a.place, a.prompt_tokens, a.new_tokens) == ("decode", None, 3, 1)
    assert (b.prompt_tokens, b.new_tokens) == (4, 0)
    assert a.age >= b.age >= c.age >= 0
    gate.open()


def told(model, gate):
    """`jobs()`, one iteration on: the engine thread answers between two."""
    send = model._link.send

    def send_and_step(command):
        send(command)
        gate.step()

    model._link.send = send_and_step
    states = model.jobs(20)
    model._link.send = send
    return states


def test_jobs_are_listed_without_places_while_the_engine_thread_hangs(make_engine):
    gate = Gate()
    model = make_engine(ScriptedBackend(gate=gate, max_active=1))
    model.submit([job("a")])
    gate.wait_until_held()
    model.submit([job("b")])
    assert [(j.identifier, j.state, j.place) for j in model.jobs(0.01)] == [
        ("a", "pending", None),
        ("b", "pending", None),
    ]
    gate.open()


def test_a_list_comes_with_its_answer_and_not_when_the_time_is_over(make_engine):
    gate, lists = Gate(), queue.Queue()
    model = make_engine(ScriptedBackend(endless, gate, max_active=1))
    streams = [model.submit([job(name, 100)]) for name in ("a", "b")]
    gate.step(2)
    gate.wait_until_held()
    thread = threading.Thread(target=lambda: lists.put(model.jobs(120)))
    thread.start()
    gate.open()
    assert [state.place for state in lists.get(timeout=20)] == [None, 1]
    thread.join(20)
    for stream in streams:
        stream.close()


def test_while_one_asks_where_it_stands_no_other_does(make_engine, monkeypatch):
    gate, questions = Gate(), queue.Queue()
    model = make_engine(ScriptedBackend(endless, gate), max_batch_size=1)
    streams = [model.submit([job(name)]) for name in ("active", "waits")]
    gate.wait_until_held()  # the engine thread answers nobody
    monkeypatch.setattr(model._link, "send", questions.put)
    first = threading.Thread(target=model.queued, args=("waits", 3600, 120))
    first.start()
    question = questions.get(timeout=20)
    assert model.queued("waits", 3600, 0.01) is None
    assert questions.empty()
    model.deliver([PendingList(question.serial, ("waits",))])
    first.join(20)
    assert not first.is_alive()
    assert model.queued("waits", 3600).place == 1
    monkeypatch.undo()
    for stream in streams:
        stream.close()
    gate.open()


def test_drain_refuses_new_jobs_at_once_and_lets_those_in_hand_end(make_engine):
    gate = Gate()
    model = make_engine(ScriptedBackend(gate=gate))
    stream = model.submit([job("a", 2)])
    models = engine.Models([model])
    models.drain()
    assert model.state == "draining"
    with pytest.raises(engine.Draining) as caught:
        model.submit([job("b")])
    assert caught.value.retry_after >= 1
    gate.open()
    assert text(take_all(stream)) == "0 1 "


def test_of_listed_jobs_none_is_older_than_one_that_came_before(make_engine):
    model = make_engine(ScriptedBackend(endless))
    stream = model.submit([job(f"job{i}") for i in range(64)])
    for _ in range(20):
        ages = [state.age for state in model.jobs(0)]
        assert len(ages) == 64 and ages == sorted(ages, reverse=True)
    stream.close()


def wait_until_empty(model):
    with model._changed:
        assert model._changed.wait_for(lambda: not model._held, 20)


def test_a_job_that_the_backend_rejects_fails_alone(make_engine):
    backend = ScriptedBackend()
    backend.enqueue_error = engine.InvalidJob("not like this", "seed")
    model = make_engine(backend)
    [event] = take_all(model.submit([job("a")]))
    assert isinstance(event.error, engine.InvalidJob) and event.error.param == "seed"
    backend.enqueue_error = None
    assert text(take_all(model.submit([job("b", 1)]))) == "0 "


@over_all_links
def test_a_job_that_never_gets_room_fails_instead_of_waiting_for_ever(make_engine):
    [event] = take_all(make_engine(ScriptedBackend(max_active=0)).submit([job("a")]))
    assert isinstance(event.error, engine.JobFailed)


def test_dead_backend_fails_every_stream_and_later_submits(make_engine):
    gate = Gate()
    backend = ScriptedBackend(gate=gate)
    backend.iterate_error = RuntimeError("x")
    for name in ("reset", "rebuild", "reload"):
        backend.recovery_errors[name] = ZeroDivisionError(name)
    model = make_engine(backend, max_batch_size=1)
    streams = [model.submit([job("a")]), model.submit([job("b")])]
    gate.open()
    ends = [take_all(stream)[-1] for stream in streams]
    assert all(isinstance(end, Failed) for end in ends)
    assert model.close(timeout=20)
    with pytest.raises(engine.Dead, match="ZeroDivisionError"):
        model.submit([job("c")])


def test_not_even_a_panic_ends_the_engine_in_silence(make_engine):
    gate = Gate()
    backend = ScriptedBackend(gate=gate)
    backend.iterate_error = Panic("unreachable code")
    for name in ("reset", "rebuild", "reload"):
        backend.recovery_errors[name] = Panic(f"{name}: unreachable code")
    model = make_engine(backend)
    stream = model.submit([job("a")])
    gate.open()
    assert isinstance(take_all(stream)[-1], Failed)
    with pytest.raises(engine.Dead, match="can't be brought back: Panic: reload: unreachable code"):
        model.submit([job("b")])


def test_jobs_are_refused_while_the_model_loads(make_engine):
    backend = ScriptedBackend()
    backend.opening.clear()
    model = make_engine(backend, start=False)
    model.start()
    with pytest.raises(engine.Loading):
        model.submit([job("a")])
    assert model.state == "loading" and not model.wait_until_loaded(0)
    backend.opening.set()
    assert model.wait_until_loaded(20)
    take_all(model.submit([job("a")]))


@over_all_links
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (engine.ModelError("no such weights"), "no such weights"),
        (KeyError("lm_head"), "the model can't be loaded: KeyError: 'lm_head'"),
        (Panic("bad header"), "the model can't be loaded: Panic: bad header"),
    ],
)
def test_a_model_that_cannot_be_loaded_says_why(make_engine, error, message):
    model = make_engine(ScriptedBackend(open_error=error))
    assert model.state == "stopped" and str(model.error) == message
    with pytest.raises(engine.Dead, match=r"can.t be loaded|no such weights"):
        model.check_room(1)
    assert type(model.error) is engine.ModelError


def test_close_lets_running_jobs_finish_and_refuses_new_ones(make_engine):
    gate = Gate()
    model = make_engine(ScriptedBackend(gate=gate))
    stream = model.submit([job("a", 3)])
    closing = threading.Thread(target=model.close, args=(60, 20))
    closing.start()
    with model._changed:
        assert model._changed.wait_for(lambda: model.state == "draining", 20)
    with pytest.raises(engine.Draining):
        model.submit([job("b")])
    gate.open()
    assert text(take_all(stream)) == "0 1 2 "
    closing.join(20)
    assert model.state == "stopped"


class NoLink:
    """Nothing is told but what a test delivers."""

    def start(self):
        pass

    def send(self, command):
        pass

    def join(self, timeout=None):
        return True


def test_close_waits_no_longer_than_for_the_last_job(model_path, monkeypatch):
    model = Engine(ModelConfig(model_path, "scripted"), lambda deliver: NoLink())
    model.deliver([Loaded(ModelInfo(2048, 4096, 256, 64, "scripted"))])
    stream = model.submit([job("a", 1)])
    waits = threading.Event()
    wait_for = model._changed.wait_for

    def wait(*args):
        waits.set()  # under the lock: what is delivered comes after
        return wait_for(*args)

    monkeypatch.setattr(model._changed, "wait_for", wait)
    closing = threading.Thread(target=model.close, args=(60, 20))
    closing.start()
    assert waits.wait(20)
    model.deliver([finished(job("a", 1), 1)])
    closing.join(20)
    assert not closing.is_alive()
    assert isinstance(take_all(stream)[-1], Finished)


class Weights:
    """Of a model: large."""


def test_an_engine_that_could_not_load_keeps_no_model(model_path):
    kept = []

    def make_backend():
        weights = Weights()
        kept.append(weakref.ref(weights))
        raise ValueError("a bad file")

    config = ModelConfig(model_path, "scripted")
    model = Engine(config, lambda deliver: EngineThread(config, make_backend, deliver))
    model.start()
    with contextlib.suppress(engine.ModelError):
        model.wait_until_loaded(20)
    assert "a bad file" in str(model.error)
    assert model.close(timeout=20)
    gc.collect()
    assert [one() for one in kept] == [None]


class TellingLock:
    """Tells who comes to it."""

    def __init__(self):
        self._lock = threading.Lock()
        self.come = threading.Semaphore(0)

    def __enter__(self):
        self.come.release()
        self._lock.acquire()

    def __exit__(self, *error):
        self._lock.release()


def test_grammars_are_made_once_and_by_who_asks_first(model_path, monkeypatch):
    made = []

    def make(tokenizer):
        made.append(tokenizer)
        for _ in asking:
            assert lock.come.acquire(timeout=20)
        return Grammars(tokenizer)

    monkeypatch.setattr("switchyard.engine.engine.Grammars", make)
    model = Engine(ModelConfig(model_path, "scripted"), lambda deliver: NoLink())
    assert made == []  # a load beside running answers holds none of them up
    lock = model._making = TellingLock()
    call = functools.partial(model.check_constraint, constraints.regex("a+"))
    asking = [threading.Thread(target=call) for _ in range(4)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join(20)
    assert made == [model.tokenizer]


@over_all_links
def test_close_ends_what_does_not_finish_within_the_grace(make_engine):
    model = make_engine(ScriptedBackend(endless, max_active=1))
    streams = [model.submit([job("a")]), model.submit([job("b")])]
    assert model.close(drain=0, timeout=20)
    for stream in streams:
        end = take_all(stream)[-1]
        assert isinstance(end, Failed) and isinstance(end.error, engine.Closed)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": ()}, "prompt"),
        ({"prompt": (1, 4096)}, "prompt"),
        ({"prompt": (-1,)}, "prompt"),
        ({"stop_token_ids": (4096,)}, "stop_token_ids"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"min_new_tokens": 4}, "min_new_tokens"),
        ({"priority": 1}, "priority"),
    ],
)
def test_what_would_hurt_in_the_generator_is_rejected_before(make_engine, changes, param):
    backend = ScriptedBackend()
    with pytest.raises(engine.InvalidJob) as caught:
        make_engine(backend).submit([job(**changes)])
    assert caught.value.param == param
    assert not backend.enqueued


def test_close_ends_jobs_in_time_also_where_a_step_hangs(make_engine):
    gate = Gate()
    model = make_engine(ScriptedBackend(endless, gate=gate))
    stream = model.submit([job("a")])
    gate.wait_until_held()
    assert not model.close(drain=0.01, timeout=0.01)
    [end] = take_all(stream)
    assert isinstance(end, Failed) and isinstance(end.error, engine.Closed)
    gate.open()


def test_an_identifier_that_is_in_use_is_rejected(make_engine):
    model = make_engine(ScriptedBackend(endless))
    model.submit([job("a")])
    with pytest.raises(engine.InvalidJob, match="identifier a is in use"):
        model.submit([job("b"), job("a")])
    assert model.num_jobs == 1


def test_a_job_beyond_the_context_is_rejected_with_the_numbers(make_engine):
    model = make_engine(ScriptedBackend())
    with pytest.raises(engine.PromptTooLong, match=r"3 prompt tokens and 2046 new .* 2048"):
        model.submit([job(max_new_tokens=2046)])


def test_a_job_larger_than_the_cache_is_rejected_with_the_numbers(make_engine):
    model = make_engine(ScriptedBackend(info=ModelInfo(2048, 4096, 256, 2, "scripted")))
    with pytest.raises(engine.PromptTooLong, match="the cache of 2 pages of 256"):
        model.submit([job(max_new_tokens=510)])
    take_all(model.submit([job(max_new_tokens=509)]))


def test_new_tokens_default_to_what_the_cache_allows(make_engine):
    model = make_engine(ScriptedBackend(info=ModelInfo(2048, 4096, 256, 2, "scripted")))
    assert model.max_new_tokens(400, None) == 112


def test_new_tokens_default_to_what_the_context_allows(make_engine):
    model = make_engine(ScriptedBackend(), default_max_tokens=100)
    assert model.max_new_tokens(10, None) == 100
    assert model.max_new_tokens(2000, None) == 48
    assert model.max_new_tokens(10, 500) == 500
    with pytest.raises(engine.PromptTooLong):
        model.max_new_tokens(2048, None)
