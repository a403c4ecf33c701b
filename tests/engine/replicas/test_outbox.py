"""Events of several threads leave one after the other, and none stays behind."""

import threading

import pytest

from switchyard.engine.links.outbox import Outbox


class Turn:
    """A lock. `before`: called once, before the first release."""

    def __init__(self, before):
        self._lock = threading.Lock()
        self._calls = [before]
        self.acquire = self._lock.acquire

    def release(self):
        if self._calls:
            self._calls.pop()()
        self._lock.release()


def test_an_event_that_comes_as_a_turn_ends_is_delivered_by_that_thread():
    told = []
    box = Outbox(told.extend)

    def come_late():
        box.put([2])
        box.deliver()  # by another thread, which finds the turn taken

    box._turn = Turn(come_late)
    box.put([1])
    box.deliver()
    assert told == [1, 2]


def test_a_delivery_that_fails_stops_no_later_one():
    told = []

    def deliver(events):
        if events == [1]:
            raise RuntimeError("no memory")
        told.extend(events)

    box = Outbox(deliver)
    box.put([1])
    with pytest.raises(RuntimeError):
        box.deliver()
    box.put([2])
    box.deliver()
    assert told == [2]
