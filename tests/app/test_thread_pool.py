"""Which thread runs a request, as gunicorn's worker has it."""

import queue
import threading
from types import SimpleNamespace

import pytest

from switchyard.server import limits
from switchyard.server.threads.thread_pool import RequestPool
from switchyard.server.worker import Worker
from tests.conftest import wait_for

NUM_THREADS = 8


@pytest.fixture
def pool():
    worker = SimpleNamespace(cfg=SimpleNamespace(threads=NUM_THREADS))
    with Worker.get_thread_pool(worker) as pool:
        limits.start_threads(pool, NUM_THREADS)
        wait_until_idle(pool)
        yield pool


@pytest.fixture
def may_end(pool):
    """Set before the pool's end, which waits for its threads."""
    event = threading.Event()
    yield event
    event.set()


def wait_until_idle(pool, number=NUM_THREADS):
    wait_for(lambda: pool.work.num_waiting == number)


def test_requests_one_after_another_are_one_threads(pool):
    threads = set()
    for _ in range(3 * NUM_THREADS):
        threads.add(pool.submit(threading.get_ident).result(20))
        wait_until_idle(pool)
    assert len(threads) == 1


def test_as_many_threads_serve_as_requests_are_at_once(pool):
    threads = set()
    for _ in range(NUM_THREADS):
        together = threading.Barrier(3)

        def serve(together=together):
            together.wait(20)
            return threading.get_ident()

        threads.update(future.result(20) for future in [pool.submit(serve) for _ in range(3)])
        wait_until_idle(pool)
    assert len(threads) == 3


def test_what_no_thread_is_free_for_waits_in_its_order(pool, may_end):
    for _ in range(NUM_THREADS):
        pool.submit(may_end.wait)
    wait_until_idle(pool, 0)
    served = []
    for i in range(20):
        pool.submit(served.append, i)
    for _ in range(20):
        pool.work.get_nowait().run()  # as a thread that has become free
    assert served == list(range(20))
    with pytest.raises(queue.Empty):
        pool.work.get_nowait()


def test_room_for_the_other_threads_is_tried_beside_all_request_threads(monkeypatch):
    most = threading.active_count() + 8 + limits.OWN_THREADS - 1  # one too few
    start = threading.Thread.start

    def limited(thread):
        if threading.active_count() >= most:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with RequestPool(8) as pool, pytest.raises(RuntimeError, match="new thread"):
        limits.start_threads(pool, 8)
