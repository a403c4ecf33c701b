"""The engine thread, which is the only thread that touches a backend, from loading to release."""

import functools
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

from switchyard.engine.backends.base import Backend
from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import (
    BatchFailed,
    Closed,
    DeviceLost,
    EngineError,
    JobFailed,
    ModelError,
    OutOfMemory,
    without_frames,
)
from switchyard.engine.links.calls import cause_of, enqueue, open_backend, recover
from switchyard.engine.messages import (
    Abandon,
    Cancel,
    Command,
    Event,
    Failed,
    Finished,
    Hanging,
    JobEvent,
    ListPending,
    Loaded,
    PendingList,
    PutBack,
    Recovered,
    Recovering,
    Stop,
    Stopped,
    Submit,
    Zombies,
)
from switchyard.engine.schedule.batch import Batch
from switchyard.engine.schedule.counters import Counters
from switchyard.engine.schedule.pending import Pending
from switchyard.engine.schedule.stopwatch import Stopwatch
from switchyard.engine.schedule.watchdog import Watchdog, stuck

logger = logging.getLogger(__name__)

LOOK = 0.02  # seconds between checks while all jobs wait for their masks and no command arrives

LOST = "the generator has lost the job"


class EngineThread:
    """Takes commands, keeps the batch full, and passes events to `deliver`. This is the Link for
    engines within this process.

    `deliver` gets all events of an iteration, on the engine thread, and must not block. The last
    event is always `Stopped`, which also ends all remaining jobs. A backend may raise panics from
    Rust libraries, which aren't of type `Exception`.
    """

    def __init__(
        self,
        config: ModelConfig,
        make_backend: Callable[[], Backend],
        deliver: Callable[[Sequence[Event]], None],
    ) -> None:
        self._config = config
        self._make_backend = make_backend  # called on the engine thread: it imports torch
        self._deliver = deliver
        self._inbox: queue.SimpleQueue[Command | None] = queue.SimpleQueue()  # None: mask ready
        self._pending = Pending(config.fair_wait_factor)
        self._batch = Batch(config.max_batch_size)
        self._counters = Counters()
        self._stopwatch = Stopwatch(self._counters)
        self._num_recoveries = 0  # since the last token
        self._is_waiting = False  # all jobs of the batch wait for masks
        self._busy_since: float | None = None  # None while it waits or loads
        self._watchdog = Watchdog(
            config.name,
            lambda: self._busy_since,
            config.hang_timeout,
            lambda seconds: deliver([Hanging(stuck(seconds))]),
            config.hang_exit,
            lambda seconds: deliver([Stopped(DeviceLost(stuck(seconds)))]),
        )
        self._thread = threading.Thread(target=self._run, name=f"engine-{config.name}", daemon=True)

    # Any thread

    def start(self) -> None:
        self._thread.start()
        self._watchdog.start()

    def send(self, command: Command) -> None:
        self._inbox.put(command)

    def join(self, timeout: float | None = None) -> bool:
        """Returns whether the thread has ended within `timeout` seconds, or never started."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        self._watchdog.stop()
        self._watchdog.join()
        return True

    # Engine thread

    def _run(self) -> None:
        backend: Backend | None = None
        error: EngineError | None = None
        try:
            backend, info = open_backend(self._make_backend)
            self._deliver([Loaded(info)])
            self._loop(backend)
        except ModelError as reason:
            error = without_frames(reason)
        except BaseException as reason:
            logger.exception("the engine thread failed")
            error = Closed(f"the engine failed: {type(reason).__name__}: {reason}")
        self._watchdog.stop()
        self._deliver([Stopped(error)])  # before the release, which is slow
        if backend is not None:
            try:
                backend.close()
            except BaseException:
                logger.exception("the model can't be released")

    def _loop(self, backend: Backend) -> None:
        is_running, wake = True, functools.partial(self._inbox.put, None)
        while is_running:
            cause = None
            self._busy_since = time.monotonic()
            try:
                is_running = self._take_commands(backend)
                if is_running:
                    self._admit(backend)
                    self._is_waiting = bool(self._batch) and backend.is_waiting(wake)
                    if self._batch and not self._is_waiting:
                        self._iterate(backend)
                        self._tell_stats(backend)
            except ModelError:  # only another process can continue: the link ends or moves the jobs
                raise
            except BaseException as reason:
                self._fail_batch(reason)
                cause = cause_of(reason)
            if cause is not None:  # outside the handler, whose frames hold the device's memory
                self._recover(backend, cause)

    def _tell(self, events: Sequence[JobEvent]) -> None:
        self._deliver(self._stopwatch.stamp(events))

    def _tell_stats(self, backend: Backend) -> None:
        if stats := self._counters.tell(backend, len(self._batch), len(self._pending)):
            self._deliver([stats])

    def _wait(self, backend: Backend) -> Command | None:
        """Wait until a command arrives. If jobs wait for masks, raises queue.Empty after LOOK
        seconds.
        """
        self._busy_since = None
        while True:
            try:
                return self._inbox.get(timeout=LOOK if self._is_waiting else self._counters.wait())
            except queue.Empty:
                self._tell_stats(backend)
                if self._is_waiting:
                    raise

    def _take_commands(self, backend: Backend) -> bool:
        """Execute all commands, and wait for one if idle. Returns False after `Stop`."""
        is_idle = self._is_waiting or (not self._batch and not self._pending)
        while True:
            try:
                command = self._wait(backend) if is_idle else self._inbox.get_nowait()
            except queue.Empty:
                return True
            if is_idle:
                self._busy_since, is_idle = time.monotonic(), False
            match command:
                case None:
                    pass
                case Submit(job, submitted):
                    self._stopwatch.submit(job, submitted)
                    self._pending.push(job)
                case Cancel(identifier):
                    self._cancel(backend, identifier)
                case ListPending(serial):
                    self._deliver([PendingList(serial, self._pending.identifiers())])
                case Abandon():
                    self._pending = Pending(self._config.fair_wait_factor)
                    self._batch = Batch(self._config.max_batch_size)
                    self._stopwatch.drop_all()
                    self._recover(backend, "a step of the generator did not return in time")
                case Stop():
                    return False

    def _cancel(self, backend: Backend, identifier: str) -> None:
        is_active = identifier in self._batch
        self._batch.end(identifier)
        if is_active:
            try:
                events = backend.cancel(identifier)
            except BaseException as reason:
                self._tell([Failed(identifier, BatchFailed(cause_of(reason)))])
                raise
            self._tell(events or [Failed(identifier, BatchFailed(LOST))])
        elif job := self._pending.remove(identifier):  # None: it has ended
            self._tell([Finished(identifier, "cancelled", len(job.prompt), 0, 0)])

    def _admit(self, backend: Backend) -> None:
        while self._pending and not self._batch.is_full:
            candidates = self._pending.candidates()
            job = next((job for job in candidates if backend.has_room(job)), None)
            if job is None and self._batch:
                return
            error: EngineError | None
            if job is None or (job is not candidates[0] and not self._batch):
                # An empty generator has no room: end the job instead of waiting forever.
                job = candidates[0]
                error = JobFailed("the job does not fit even into an empty generator")
            else:
                error = enqueue(backend, job)
            if error is None or isinstance(error, OutOfMemory):
                self._pending.start(job.identifier)
                self._batch.add(job)
                self._stopwatch.start(job.identifier)
            else:
                self._pending.remove(job.identifier)
            if error is not None:
                event = self._without_memory(Failed(job.identifier, error))
                self._batch.note([event])
                self._tell([event])

    def _iterate(self, backend: Backend) -> None:
        begin, batch_size, num_tokens = time.monotonic(), len(self._batch), self._batch.num_tokens
        events = [self._without_memory(event) for event in backend.iterate()]
        events, loops = self._batch.cut_loops(events)
        if self._batch.note(events):
            self._num_recoveries = 0
        if events:
            self._tell(events)
        self._counters.iterate(begin, batch_size, self._batch.num_tokens - num_tokens)
        for loop in loops:
            identifier = loop.job.identifier
            # Other events of the cancelled job belong to tokens after the loop.
            ends = [loop.last] if loop.last is not None else backend.cancel(identifier)
            self._batch.end(identifier)
            self._tell([loop.finish(ends)])
        if backend.num_jobs != len(self._batch):
            self._end_zombies(backend)

    def _end_zombies(self, backend: Backend) -> None:
        """End jobs that only the generator knows, and jobs that the generator has lost."""
        num_strays, lost = backend.reconcile(self._batch.identifiers)
        logger.error("zombies: the generator has %d unknown jobs and has lost %s", num_strays, lost)
        failed = [Failed(i, BatchFailed(LOST)) for i in lost]
        self._batch.note(failed)
        self._deliver([Zombies(num_strays + len(lost))])
        self._tell(failed)

    def _without_memory(self, event: JobEvent) -> JobEvent:
        """Put a job back if there was no memory for its prompt. It waits until fewer jobs run."""
        if not (isinstance(event, Failed) and isinstance(event.error, OutOfMemory)):
            return event
        self._halve()
        job = self._batch.put_back(event.identifier)
        if job is None:
            return event
        self._pending.push(job, is_due=True)
        return PutBack(event.identifier)

    def _halve(self) -> None:
        self._batch.halve()
        self._counters.totals.out_of_memory += 1

    def _fail_batch(self, reason: BaseException) -> None:
        """End the active jobs, except those that can start over."""
        logger.error("iteration failed with %d active jobs", len(self._batch), exc_info=reason)
        if isinstance(reason, OutOfMemory):
            self._halve()
        again, failed = self._batch.break_up(cause_of(reason))
        for job in again:
            self._pending.push(job, is_due=True)
        self._tell([*(PutBack(job.identifier) for job in again), *failed])

    def _recover(self, backend: Backend, cause: str) -> None:
        """Recover with increasingly drastic methods. Use a more drastic method only if no token has
        been produced since the milder methods were tried.
        """
        self._deliver([Recovering(cause)])
        told: str | None = cause
        for how in (backend.reset, backend.rebuild, backend.reload)[self._num_recoveries :]:
            self._num_recoveries += 1
            self._counters.recover(how.__name__)
            self._busy_since = None if how == backend.reload else time.monotonic()
            told = recover(how)
            if told is None:
                self._deliver([Recovered()])
                return
        raise ModelError(f"the generator can't be recovered: {told}")
