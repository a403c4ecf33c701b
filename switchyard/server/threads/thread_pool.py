"""The pool of request threads. The most recently busy idle thread takes the next request."""

import queue
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class LastBusyFirst:
    """The queue of a `ThreadPoolExecutor`. Items are first in, first out; waiting threads are last
    in, first out.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the attributes below
        self._items: deque[Any] = deque()  # empty while a thread waits
        self._waiting: list[queue.SimpleQueue[Any]] = []  # one each, for the thread's next item

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
        """Raises queue.Empty if `block` is False and there is no item."""
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
    """A pool that reuses the threads that were busy last. Python's own pool uses its threads in
    turn. For each thread that has been used, the C library keeps a stack and up to 240 KB of freed
    memory. With Python's pool, hundreds of threads would take this memory even if few are busy.
    """

    def __init__(self, max_workers: int) -> None:
        super().__init__(max_workers)
        self.work = LastBusyFirst()
        self._work_queue: Any = self.work
