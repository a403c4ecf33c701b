"""The pool of request threads. What is to be done goes to the thread that was busy last."""

import queue
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class LastBusyFirst:
    """A queue, first in and first out, for a `ThreadPoolExecutor`: of the threads that wait, the
    last that came is served first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards both
        self._items: deque[Any] = deque()  # empty while any waits
        self._waiting: list[queue.SimpleQueue[Any]] = []  # one each, for one item

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def put(self, item: Any) -> None:
        with self._lock:
            if not self._waiting:
                self._items.append(item)
                return
            waiting = self._waiting.pop()
        waiting.put(item)

    def get(self, block: bool = True) -> Any:
        """Raises queue.Empty unless it may `block`."""
        with self._lock:
            if self._items:
                return self._items.popleft()
            if not block:
                raise queue.Empty
            own: queue.SimpleQueue[Any] = queue.SimpleQueue()
            self._waiting.append(own)
        return own.get()

    def get_nowait(self) -> Any:
        return self.get(block=False)


class RequestPool(ThreadPoolExecutor):
    """Python's own takes its threads in turn. Each would touch a stack, and have the C library keep
    freed memory for it, up to 240 KB: of some hundred threads, though few are ever busy at once.
    """

    def __init__(self, max_workers: int) -> None:
        super().__init__(max_workers)
        self.work = LastBusyFirst()
        self._work_queue: Any = self.work
