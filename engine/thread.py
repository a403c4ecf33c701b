"""The engine thread: the one thread that touches a backend, from loading to release."""

import logging
import queue
import threading
from collections.abc import Callable, Sequence

from engine.backends.base import Backend
from engine.config import ModelConfig
from engine.errors import BatchFailed, Closed, EngineError, JobFailed, ModelError, Rejected
from engine.messages import (
    Cancel,
    Command,
    Event,
    Failed,
    Finished,
    Job,
    JobEvent,
    ListPending,
    Loaded,
    PendingList,
    Stop,
    Stopped,
    Submit,
)
from engine.pending import Pending

logger = logging.getLogger(__name__)


class EngineThread:
    """Takes commands, keeps the batch full, hands events to `deliver`. A Link, in this process.

    `deliver` is called on the engine thread with all events of an iteration and must not block.
    The last event is always `Stopped`; jobs that have not ended by then end with it.
    """

    def __init__(
        self,
        config: ModelConfig,
        make_backend: Callable[[], Backend],
        deliver: Callable[[Sequence[Event]], None],
    ) -> None:
        self._make_backend = make_backend  # called on the engine thread: it imports torch
        self._deliver = deliver
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._pending = Pending(config.fair_wait_factor)
        self._active: dict[str, Job] = {}
        self._thread = threading.Thread(target=self._run, name=f"engine-{config.name}", daemon=True)

    # Any thread

    def start(self) -> None:
        self._thread.start()

    def send(self, command: Command) -> None:
        self._inbox.put(command)

    def join(self, timeout: float | None = None) -> bool:
        """Whether the thread has ended within `timeout` seconds, or never started."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    # Engine thread

    def _run(self) -> None:
        backend: Backend | None = None
        error: EngineError | None = None
        try:
            backend = self._open()
            self._loop(backend)
        except ModelError as reason:
            error = reason
        except BaseException as reason:  # a panic in a library written in Rust isn't an Exception
            logger.exception("the engine thread ends")
            error = Closed(f"the engine failed: {type(reason).__name__}: {reason}")
        self._deliver([Stopped(error)])  # before the release, which takes a while
        if backend is not None:
            try:
                backend.close()
            except Exception:
                logger.exception("release of the model")

    def _open(self) -> Backend:
        try:
            backend = self._make_backend()
            info = backend.open()
        except ModelError:
            raise
        except Exception as reason:  # what libraries say of a bad model directory, in one line
            logger.debug("load", exc_info=True)
            raise ModelError(
                f"the model can't be loaded: {type(reason).__name__}: {reason}"
            ) from None
        self._deliver([Loaded(info)])
        return backend

    def _loop(self, backend: Backend) -> None:
        while self._take_commands(backend):
            self._admit(backend)
            if self._active:
                self._iterate(backend)

    def _take_commands(self, backend: Backend) -> bool:
        """Obey all that has arrived; wait for something if idle. False once told to stop."""
        is_idle = not self._active and not self._pending
        while True:
            try:
                command = self._inbox.get(block=is_idle)
            except queue.Empty:
                return True
            is_idle = False
            match command:
                case Submit(job):
                    self._pending.push(job)
                case Cancel(identifier):
                    self._cancel(backend, identifier)
                case ListPending(serial):
                    self._deliver([PendingList(serial, self._pending.identifiers())])
                case Stop():
                    return False

    def _cancel(self, backend: Backend, identifier: str) -> None:
        if identifier in self._active:  # else it waits, or ended while the command was on its way
            del self._active[identifier]
            self._deliver(backend.cancel(identifier))
        elif job := self._pending.remove(identifier):
            self._deliver([Finished(identifier, "cancelled", len(job.prompt), 0, 0)])

    def _admit(self, backend: Backend) -> None:
        while self._pending:
            candidates = self._pending.candidates()
            job = next((job for job in candidates if backend.has_room(job)), None)
            if job is None and self._active:
                return
            if job is None or (job is not candidates[0] and not self._active):
                # Nothing will ever make room: say so instead of waiting for ever.
                job = candidates[0]
                error: EngineError = JobFailed("the job does not fit an empty generator")
            else:
                try:
                    backend.enqueue(job)
                except Rejected as reason:
                    error = reason
                else:
                    self._pending.start(job.identifier)
                    self._active[job.identifier] = job
                    continue
            self._pending.remove(job.identifier)
            self._deliver([Failed(job.identifier, error)])

    def _iterate(self, backend: Backend) -> None:
        try:
            events = backend.iterate()
        except Exception as reason:
            logger.exception("iteration failed, %d active jobs end", len(self._active))
            cause = f"{type(reason).__name__}: {reason}"
            events = [Failed(identifier, BatchFailed(cause)) for identifier in self._active]
            self._forget_ended(events)
            self._deliver(events)
            backend.reset()
            return
        self._forget_ended(events)
        if events:
            self._deliver(events)

    def _forget_ended(self, events: Sequence[JobEvent]) -> None:
        for event in events:
            if isinstance(event, Finished | Failed):
                self._active.pop(event.identifier, None)
