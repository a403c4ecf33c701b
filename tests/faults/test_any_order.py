"""An engine under random sequences of submits, cancels, leaves, faults and drains. Whatever comes,
every job ends once, nobody gets another's text, and nothing is left behind.
"""

import dataclasses

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from switchyard import engine
from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import InvalidJob, OutOfMemory
from switchyard.engine.job import Job
from switchyard.engine.links.thread import EngineThread
from switchyard.engine.messages import Chunk, Failed, Finished
from tests.conftest import DEMO
from tests.scripted import Gate, ScriptedBackend

MAX_ACTIVE, MAX_PENDING = 4, 6
FAULTS = (RuntimeError, OutOfMemory, "returns garbage", "loses a job", "tells of nobody")


class FaultyBackend(ScriptedBackend):
    """Also tells of jobs that nobody knows, returns what is no list of events, and loses jobs.

    `plan` says what the next iterations do: None is a good one.
    """

    def __init__(self, gate):
        super().__init__(gate=gate, max_active=MAX_ACTIVE)
        self.plan = []

    def iterate(self):
        fault = self.plan.pop(0) if self.plan else None
        if isinstance(fault, Exception):
            self.iterate_error = fault
        elif fault == "loses a job" and self.active:
            del self.active[next(iter(self.active))]
        events = super().iterate()
        if fault == "tells of nobody":
            events += [Chunk("nobody", "not yours", (7,)), Finished("nobody", "stop", 1, 1, 0)]
        return None if fault == "returns garbage" else events


@dataclasses.dataclass
class Taken:
    job: Job
    stream: engine.Stream
    is_cancelled: bool = False


# What a machine is told to do: the name of a method, and its arguments. All is drawn beforehand,
# since the engine thread runs meanwhile and nothing drawn may depend on how far it is.
LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=3)
SUBMIT = st.tuples(st.just("submit"), LENGTHS, st.integers(-1, 1), st.sampled_from("abc"))
TIMES = st.sampled_from([1, 1, 1, 2])
STEP = st.tuples(st.just("step"), st.integers(1, 5))
OPERATIONS = st.one_of(
    SUBMIT,
    SUBMIT,
    STEP,
    STEP,
    st.tuples(st.sampled_from(["cancel", "leave"]), st.integers(0, 100)),
    st.tuples(st.just("plan"), st.integers(1, 6), st.sampled_from(FAULTS), TIMES),
    st.tuples(st.just("fail_recovery"), st.sampled_from(["reset", "rebuild"])),
    st.tuples(st.just("refuse_in_the_generator"), st.booleans()),
    st.tuples(st.just("list_jobs")),
)


class Machine:
    def __init__(self):
        self.gate = Gate()
        self.backend = FaultyBackend(self.gate)
        config = ModelConfig(
            DEMO, "scripted", max_batch_size=MAX_ACTIVE, max_pending=MAX_PENDING, max_priority=1
        )
        self.engine = engine.Engine(
            config, lambda deliver: EngineThread(config, lambda: self.backend, deliver)
        )
        self.engine.start()
        assert self.engine.wait_until_loaded(20)
        self.taken: list[Taken] = []
        self.had_fault = False
        self.is_draining = False
        self.num_jobs = 0

    @property
    def has_given_up(self):
        """Whether failures went on, without a token, until no way of recovery was left."""
        return self.had_fault and self.engine.state == "stopped" and self.engine.error is not None

    def submit(self, lengths, priority, client):
        jobs = []
        for length in lengths:
            self.num_jobs += 1
            name = f"job{self.num_jobs}"
            jobs.append(Job(name, (1, 2, 3), length, priority=priority, client=client))
        try:
            stream = self.engine.submit(jobs)
        except engine.Refused as refusal:
            assert refusal.retry_after > 0
            assert self.has_given_up or self.is_draining == isinstance(refusal, engine.Draining)
            return
        assert not self.is_draining
        self.taken += [Taken(job, stream) for job in jobs]

    def cancel(self, number):
        if self.taken:
            taken = self.taken[number % len(self.taken)]
            taken.is_cancelled = True
            self.engine.cancel(taken.job.identifier)

    def leave(self, number):
        if self.taken:
            stream = self.taken[number % len(self.taken)].stream
            stream.close()
            self.taken = [taken for taken in self.taken if taken.stream is not stream]

    def step(self, times):
        self.gate.step(times)

    def plan(self, num_good, fault, times):
        self.had_fault |= fault != "tells of nobody"
        faults = [fault("asked for") if isinstance(fault, type) else fault for _ in range(times)]
        self.backend.plan += [None] * num_good + faults

    def fail_recovery(self, name):
        self.backend.recovery_errors[name] = RuntimeError("asked for")

    def refuse_in_the_generator(self, is_on):
        self.had_fault |= is_on
        self.backend.enqueue_error = InvalidJob("asked for") if is_on else None

    def list_jobs(self):
        for state in self.engine.jobs(timeout=0):
            assert state.state in ("pending", "prefill", "decode")

    def drain(self):
        self.is_draining = True
        self.engine.drain()

    def end(self):
        self.gate.open()
        try:
            for taken in {id(t.stream): t for t in self.taken}.values():
                self.read(taken.stream)
            self.check_that_nothing_is_left()
        finally:
            assert self.engine.close(timeout=20)
        assert self.has_given_up or not self.backend.active

    def read(self, stream):
        """All events of a stream; each of its jobs must have ended once, with its own text."""
        events = []
        while not stream.is_finished:
            more = stream.take(10)
            assert more, "a job without an end"
            events += more
        assert stream.take(0.01) == []
        for taken in self.taken:
            if taken.stream is stream:
                name = taken.job.identifier
                self.check(taken, [event for event in events if event.identifier == name])
        assert {e.identifier for e in events} <= {
            t.job.identifier for t in self.taken if t.stream is stream
        }

    def check(self, taken, events):
        texts = [event.text for event in events if isinstance(event, Chunk)]
        assert texts == [f"{i} " for i in range(len(texts))]
        assert sum(isinstance(event, Finished | Failed) for event in events) == 1
        match events[-1]:
            case Finished(_, "length"):
                assert len(texts) == taken.job.max_new_tokens
            case Finished(_, reason, new_tokens=new_tokens):
                assert reason == "cancelled" and taken.is_cancelled
                assert new_tokens >= len(texts)
            case Failed(_, error):
                assert self.had_fault
                assert isinstance(error, engine.EngineError)

    def check_that_nothing_is_left(self):
        with self.engine._changed:
            assert self.engine._changed.wait_for(lambda: not self.engine._held, 20)
        assert self.engine.jobs() == []
        if not self.is_draining and not self.has_given_up:
            self.backend.enqueue_error = None
            job = Job("the last", (1, 2, 3), 2)
            stream = self.engine.submit([job])
            self.taken = [Taken(job, stream)]
            self.read(stream)
            assert self.has_given_up or self.engine.state in ("ready", "recovering")


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(st.lists(OPERATIONS, min_size=12, max_size=50), st.integers(0, 100))
def test_every_job_ends_once_with_its_own_text_whatever_comes(operations, drain_at):
    machine = Machine()
    try:
        for i, (name, *arguments) in enumerate(operations):
            if i == drain_at:
                machine.drain()
            getattr(machine, name)(*arguments)
    finally:
        machine.end()
