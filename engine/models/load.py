"""A change to an entry in the table, and the order in which changes run."""

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Literal

from switchyard.engine.engine import Engine
from switchyard.engine.errors import EngineError

Way = Literal["beside", "drain"]  # of a swap: load before the end of the old engine, or after it


class Load:
    """A load, a swap or an unload, for which several threads may wait."""

    def __init__(
        self,
        name: str,
        is_waited_for: bool = True,
        is_load: bool = False,
        is_unload: bool = False,
    ) -> None:
        """`is_waited_for`: whether requests for the name wait for the end of the change. `is_load`:
        False for a swap of a loaded model.
        """
        self.name = name
        self.is_waited_for = is_waited_for
        self.is_load = is_load
        self.is_unload = is_unload
        self.way: Way | None = None  # of a swap; None until it is chosen
        self.engine: Engine | None = None  # the engine that loads
        self.error: EngineError | None = None  # the failure, once it is done
        self.seconds: float | None = None  # duration, once it is done
        self.is_cancelled = False
        self.then: Callable[[], None] = lambda: None  # called after success
        self._begun = time.monotonic()
        self._lock = threading.Lock()  # guards the progress
        self._progress: float | None = None  # the furthest that was reported
        self._done = threading.Event()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    @property
    def progress(self) -> float | None:
        """The progress from 0 to 1, or None while it is unknown. During a second attempt, with
        another engine, the value stays the same until the progress exceeds that of the first
        attempt.
        """
        now = None if self.engine is None else self.engine.progress
        with self._lock:
            if now is not None:
                self._progress = max(now, self._progress or 0.0)
            return self._progress

    def wait(self, timeout: float | None = None) -> float | None:
        """Returns the progress after `timeout` seconds (0 if unknown), or None as soon as the
        change has ended. Raises the error of a failed change.
        """
        if not self._done.wait(timeout):
            return self.progress or 0.0
        if self.error is not None:
            raise self.error.with_traceback(None)  # without the tracebacks of other waiting threads
        return None

    def wait_for_end(self) -> None:
        """Waits for the end of the change, and returns even if it has failed."""
        self._done.wait()

    def end(self, error: EngineError | None = None) -> None:
        """Called by the thread that makes the change."""
        self.error = error
        self.seconds = time.monotonic() - self._begun
        self._done.set()


class _Turn:
    __slots__ = ("gpus",)

    def __init__(self, gpus: Collection[int]) -> None:
        self.gpus = frozenset(gpus)  # empty: all

    def meets(self, other: "_Turn") -> bool:
        return not self.gpus or not other.gpus or bool(self.gpus & other.gpus)


class Turns:
    """Allows one change at a time on each GPU, in order of arrival, so that no other load takes
    memory that a change has found to be free.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards the list
        self._turns: list[_Turn] = []

    @contextlib.contextmanager
    def take(self, gpus: Collection[int]) -> Iterator[None]:
        turn = _Turn(gpus)
        with self._changed:
            self._turns.append(turn)
            self._changed.wait_for(lambda: self._is_next(turn))
        try:
            yield
        finally:
            with self._changed:
                self._turns.remove(turn)
                self._changed.notify_all()

    def _is_next(self, turn: _Turn) -> bool:
        before = self._turns[: self._turns.index(turn)]
        return not any(turn.meets(other) for other in before)
