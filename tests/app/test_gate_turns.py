"""What an input at the gate takes of the others' time."""

import sys
from types import SimpleNamespace

import pytest

from switchyard import engine
from switchyard.app.http import gate as gate_module
from switchyard.app.http.gate import LARGE, MAX_BYTES, SWITCH_INTERVAL
from tests.app.test_gate import enter, in_thread, make_gate, wait_until


@pytest.fixture
def clock(monkeypatch):
    """The gate's: `now`, and the alarms that it sets, (seconds, call)."""
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now, alarms=[])
    clock.set = lambda seconds, call: clock.alarms.append((seconds, call))
    monkeypatch.setattr(gate_module, "time", clock)
    monkeypatch.setattr(engine, "ALARMS", clock)
    return clock


def test_a_process_whose_threads_take_even_shorter_turns_keeps_them():
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL / 5)
    try:
        with enter(make_gate(), LARGE):
            assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL / 5, rel=0.05)
    finally:
        sys.setswitchinterval(usual)


def test_of_two_that_leave_together_the_longer_one_counts_for_the_next(clock):
    gate = make_gate(num_busy=1)
    first = enter(gate, LARGE)
    clock.now += 5
    second = enter(gate, LARGE)
    follower = in_thread(enter, gate, MAX_BYTES)
    wait_until(lambda: gate.num_waiting == 1)
    clock.now += 1
    first.leave()
    second.leave()
    [(rest, end)] = [alarm for alarm in clock.alarms if alarm[1] == gate._end_rest]
    assert (rest, gate.num_inside) == (6.0, 0)
    clock.now += rest
    end()
    follower().leave()


def test_what_an_input_has_waited_counts_for_no_rest_behind_it(clock):
    gate = make_gate()
    first, followers = enter(gate, MAX_BYTES), []
    for number in (1, 2):
        followers.append(in_thread(enter, gate, MAX_BYTES))
        wait_until(lambda number=number: gate.num_waiting == number)
    clock.now += 5
    first.leave()
    gate._num_busy = lambda: 1
    clock.now += 1
    gate._inside[0].leave()
    [(rest, end)] = [alarm for alarm in clock.alarms if alarm[1] == gate._end_rest]
    assert rest == 1.0
    clock.now += rest
    end()
    gate._inside[0].leave()
    for follower in followers:
        follower()


@pytest.mark.parametrize(("max_waiting", "max_busy"), [(1, 1000), (10, 101)])
def test_as_many_wait_at_the_gate_as_may_and_no_more(max_waiting, max_busy):
    gate = make_gate(max_waiting, max_busy, num_busy=0)
    gate._num_busy = lambda: 100
    places = [enter(gate, LARGE) for _ in range(2)]
    follower = in_thread(enter, gate, LARGE)
    wait_until(lambda: gate.num_waiting == 1)
    with pytest.raises(engine.Full):
        enter(gate, LARGE)
    gate._num_busy = lambda: 0  # nothing rests
    for place in places:
        place.leave()
    follower().leave()
    assert (gate.num_inside, gate.num_waiting) == (0, 0)


def test_one_alarm_ends_a_rest_however_many_come_meanwhile(clock):
    gate = make_gate(num_busy=1)
    followers = []

    def follow():
        number = gate.num_waiting
        followers.append(in_thread(enter, gate, MAX_BYTES))
        wait_until(lambda: gate.num_waiting == number + 1)

    with enter(gate, MAX_BYTES):
        follow()
        clock.now += 3
    for _ in range(3):
        follow()
    [end] = [call for seconds, call in clock.alarms if seconds == 3.0]
    gate._num_busy = lambda: 0
    clock.now += 3
    end()
    for _ in range(4):
        wait_until(lambda: gate.num_inside == 1)
        gate._inside[0].leave()
    for follower in followers:
        follower()
