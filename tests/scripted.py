"""A backend whose every step a test decides: text comes from a script, time does not pass."""

import itertools
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from switchyard import engine
from switchyard.engine import messages
from switchyard.engine.job import Job
from switchyard.engine.stats import Occupancy, Work


class Panic(BaseException):
    """As a library written in Rust raises it: no Exception."""


Script = Callable[[Job], Iterable[messages.JobEvent]]


def count(job: Job) -> Iterable[messages.JobEvent]:
    """The numbers from 0, a token each, up to the job's limit."""
    yield messages.Started(job.identifier)
    for i in range(job.max_new_tokens):
        yield messages.Chunk(job.identifier, f"{i} ", (i,))
    yield finished(job, job.max_new_tokens)


def endless(job: Job) -> Iterable[messages.JobEvent]:
    """Starts and never ends. It is no loop, which would end it."""
    yield messages.Started(job.identifier)
    for i in itertools.cycle(range(1000)):
        yield messages.Chunk(job.identifier, "x", (i,))


def ticking(job: Job) -> Iterable[messages.JobEvent]:
    """A token every few milliseconds, forever; the pace of a real model, roughly."""
    for event in endless(job):
        yield event
        time.sleep(0.005)


def slow(job: Job) -> Iterable[messages.JobEvent]:
    """Likewise, but it ends."""
    yield messages.Started(job.identifier)
    for i in range(job.max_new_tokens):
        time.sleep(0.005)
        yield messages.Chunk(job.identifier, "x", (i % 1000,))
    yield finished(job, job.max_new_tokens)


def finished(
    job: Job, new_tokens: int, reason: messages.FinishReason = "length"
) -> messages.Finished:
    return messages.Finished(job.identifier, reason, len(job.prompt), new_tokens, 0)


class Gate:
    """Lets a number of iterations through; all, once opened."""

    def __init__(self) -> None:
        self._steps: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._open = threading.Event()
        self._held = threading.Semaphore(0)

    def wait_until_held(self) -> None:
        """Until one more iteration has come to the gate."""
        assert self._held.acquire(timeout=20)

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self._steps.put(None)

    def open(self) -> None:
        self._open.set()
        self._steps.put(None)

    def wait(self) -> None:
        self._held.release()
        if not self._open.is_set():
            self._steps.get()


class ScriptedBackend:
    """One event of every active job in an iteration, from `script(job)`.

    `calls` lists (method, thread); `gate`, if given, holds every iteration.
    """

    def __init__(
        self,
        script: Script = count,
        gate: Gate | None = None,
        open_error: Exception | None = None,
        max_active: int = 1000,
        info: messages.ModelInfo | None = None,
    ) -> None:
        self.made_of = (script, gate, open_error, max_active, info)
        self.work = Work()
        self.used = Occupancy()
        self.calls: list[tuple[str, int]] = []
        self.active: dict[str, Iterable[messages.JobEvent]] = {}
        self.enqueued: list[Job] = []
        self.num_chunks: Counter[str] = Counter()
        self.iterate_error: BaseException | None = None
        self.iterate_errors: list[Exception] = []  # of the next iterations that have jobs
        self.recovery_errors: dict[str, Exception] = {}  # by method, each raised once
        self.enqueue_error: Exception | None = None
        self.opening = threading.Event()
        self.opening.set()
        self.recovering = threading.Event()
        self.recovering.set()
        self._script = script
        self._gate = gate
        self._open_error = open_error
        self._max_active = max_active
        self._info = info or messages.ModelInfo(2048, 4096, 256, 64, "scripted")

    def _note(self, name: str) -> None:
        self.calls.append((name, threading.get_ident()))

    def open(self) -> messages.ModelInfo:
        self._note("open")
        self.opening.wait()
        if self._open_error is not None:
            raise self._open_error
        return self._info

    def has_room(self, job: Job) -> bool:
        self._note("has_room")
        return len(self.active) < self._max_active

    def enqueue(self, job: Job) -> None:
        self._note("enqueue")
        if self.enqueue_error is not None:
            raise self.enqueue_error
        self.enqueued.append(job)
        self.active[job.identifier] = iter(self._script(job))

    def cancel(self, identifier: str) -> list[messages.JobEvent]:
        self._note("cancel")
        if self.active.pop(identifier, None) is None:
            return []
        [job] = [job for job in self.enqueued if job.identifier == identifier]
        return [finished(job, self.num_chunks[identifier], "cancelled")]

    def iterate(self) -> list[messages.JobEvent]:
        self._note("iterate")
        if self._gate is not None:
            self._gate.wait()
        if self.iterate_error is not None:
            error, self.iterate_error = self.iterate_error, None
            raise error
        if self.iterate_errors:
            raise self.iterate_errors.pop(0)
        events: list[messages.JobEvent] = []
        for identifier, script in list(self.active.items()):
            event = next(script)
            events.append(event)
            self.num_chunks[identifier] += isinstance(event, messages.Chunk)
            if isinstance(event, messages.Finished | messages.Failed):
                del self.active[identifier]
        return events

    def is_waiting(self, wake: Callable[[], None]) -> bool:
        return False

    @property
    def num_jobs(self) -> int:
        return len(self.active)

    def occupancy(self) -> Occupancy:
        self._note("occupancy")
        return self.used

    def reconcile(self, known: Sequence[str]) -> tuple[int, list[str]]:
        self._note("reconcile")
        strays = [identifier for identifier in self.active if identifier not in known]
        for identifier in strays:
            del self.active[identifier]
        return len(strays), [identifier for identifier in known if identifier not in self.active]

    def reset(self) -> None:
        self._recover("reset")

    def rebuild(self) -> None:
        self._recover("rebuild")

    def reload(self) -> None:
        self._recover("reload")

    def _recover(self, name: str) -> None:
        self._note(name)
        self.recovering.wait()
        self.active.clear()
        if name in self.recovery_errors:
            raise self.recovery_errors.pop(name)

    @property
    def recoveries(self) -> list[str]:
        return [name for name, _ in self.calls if name in ("reset", "rebuild", "reload")]

    def close(self) -> None:
        self._note("close")


class NoLink:
    """To no thread: nothing is told but what a test delivers."""

    def __init__(self) -> None:
        self.sent: list[messages.Command] = []
        self.is_started = False

    def start(self) -> None:
        self.is_started = True

    def send(self, command: messages.Command) -> None:
        self.sent.append(command)

    def join(self, timeout: float | None = None) -> bool:
        return True


def make_again(kind: type[ScriptedBackend], made_of: tuple, deliver: object) -> ScriptedBackend:
    """In another process."""
    return kind(*made_of)


def job(identifier: str = "a", max_new_tokens: int = 3, **more: object) -> engine.Job:
    prompt = more.pop("prompt", (1, 2, 3))
    return engine.Job(identifier, prompt, max_new_tokens, **more)


def says(
    *pieces: str, reason: messages.FinishReason = "stop", stop_reason: str | int | None = None
) -> Script:
    """These texts, a token each, and the end."""

    def script(job: Job) -> Iterable[messages.JobEvent]:
        yield messages.Started(job.identifier)
        for i, piece in enumerate(pieces):
            yield messages.Chunk(job.identifier, piece, (i,))
        yield replace(finished(job, len(pieces), reason), stop_reason=stop_reason)

    return script
