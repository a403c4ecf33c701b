import queue
import threading
from functools import partial

import pytest

from switchyard.engine.schedule.alarms import Alarms
from tests.conftest import wait_for
from tests.engine.failing import begin


@pytest.fixture
def alarms():
    return Alarms()


def alarm_threads():
    return [t for t in threading.enumerate() if t.name == "alarms"]


def test_an_earlier_one_does_not_wait_for_a_later_one(alarms, monkeypatch):
    monkeypatch.setattr("switchyard.engine.schedule.alarms.PURGE", 3600)  # nor for its turn
    late = alarms.set(3600, lambda: None)
    for _ in range(3):
        rung = threading.Event()
        alarms.set(0.01, rung.set)
        assert rung.wait(20)
    late.cancel()
    alarms.set(0.01, lambda: None)  # which ends the thread


def test_a_cancel_waits_for_the_call_that_is_being_made(alarms):
    has_begun, may_end, steps = threading.Event(), threading.Event(), []

    def call():
        has_begun.set()
        may_end.wait(20)
        steps.append("called")

    def cancel():
        alarm.cancel()
        steps.append("cancelled")

    alarm = alarms.set(0, call)
    assert has_begun.wait(20)
    canceller = begin(cancel)
    canceller.join(0.1)
    may_end.set()
    canceller.join(20)
    assert steps == ["called", "cancelled"]


def test_one_that_fails_stops_no_other(alarms, caplog):
    rung = threading.Event()
    alarms.set(0, lambda: 1 / 0)
    alarms.set(0.05, rung.set)
    assert rung.wait(20)
    assert "ZeroDivisionError" in caplog.text


def test_the_thread_ends_without_alarms_and_another_comes_with_the_next(alarms, monkeypatch):
    # It must be there still when it is looked for.
    monkeypatch.setattr("switchyard.engine.schedule.alarms.PURGE", 1.0)
    for _ in range(2):
        alarms.set(1000, lambda: None).cancel()
        [thread] = alarm_threads()
        thread.join(20)
        assert not thread.is_alive()


def test_the_thread_that_has_nothing_left_is_woken_to_end(alarms, monkeypatch):
    module = "switchyard.engine.schedule.alarms.PURGE"
    monkeypatch.setattr(module, 30.0)
    late = alarms.set(3600, lambda: None)
    wait_for(lambda: alarms._changed._waiters)
    late.cancel()
    monkeypatch.setattr(module, 10.0)  # of the wait for its end
    alarms.rest()
    assert not alarm_threads()


def test_garbage_of_a_thread_that_begins_may_set_an_alarm(alarms, monkeypatch):
    """Whoever sets the first alarm waits for its thread to begin, which may collect garbage."""
    rung, plain = queue.SimpleQueue(), threading.Thread

    class Collecting(plain):
        def start(self):
            other = plain(target=lambda: alarms.set(0.0, lambda: rung.put("garbage")))
            other.start()
            other.join(20)
            assert not other.is_alive(), "waits for the one that waits for it"
            super().start()

    monkeypatch.setattr(threading, "Thread", Collecting)
    alarms.set(0.0, lambda: rung.put("own"))
    assert {rung.get(timeout=20), rung.get(timeout=20)} == {"own", "garbage"}


def test_where_no_thread_could_begin_the_next_alarm_begins_one(alarms, monkeypatch):
    rung, start = queue.SimpleQueue(), threading.Thread.start

    def fail(thread):
        monkeypatch.setattr(threading.Thread, "start", start)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(RuntimeError, match="new thread"):
        alarms.set(0.0, lambda: rung.put("first"))
    alarms.set(0.0, lambda: rung.put("second"))
    assert [rung.get(timeout=20) for _ in range(2)] == ["first", "second"]


def test_those_that_are_left_ring_in_their_order_on_one_thread_where_one_was_cancelled(alarms):
    rung, has_begun, set_alarms = queue.SimpleQueue(), threading.Event(), {}
    alarms.set(0.0, lambda: has_begun.wait(20))  # all others are set, and one cancelled, meanwhile
    for number in (1, 5, 2, 6, 7, 3, 4):
        ring = partial(lambda number: rung.put((number, threading.get_ident())), number)
        set_alarms[number] = alarms.set(0.05 + number / 1000, ring)
    set_alarms[2].cancel()
    has_begun.set()
    numbers, threads = zip(*[rung.get(timeout=20) for _ in range(6)], strict=True)
    assert numbers == (1, 3, 4, 5, 6, 7) and len(set(threads)) == 1
