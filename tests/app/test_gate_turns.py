"""What an input at the gate takes of the others' time."""

import sys

import pytest

from switchyard import engine
from switchyard.app.http.gate import LARGE, MAX_BYTES, SWITCH_INTERVAL
from tests.app.test_gate import clock, enter, follow, make_gate  # noqa: F401
from tests.conftest import wait_for


def test_a_process_whose_threads_take_even_shorter_turns_keeps_them():
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL / 5)
    try:
        with enter(make_gate(), LARGE):
            assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL / 5, rel=0.05)
    finally:
        sys.setswitchinterval(usual)


def rest_of(gate, by):
    """The gate's, which is over now."""
    [(rest, end)] = [alarm for alarm in by.alarms if alarm[1] == gate._end_rest]
    assert gate.num_inside == 0
    by.now += rest
    end()
    return rest


def test_of_two_that_leave_together_the_longer_one_counts_for_the_next(clock):  # noqa: F811
    gate = make_gate(num_busy=1)
    first = enter(gate, LARGE)
    clock.now += 5
    second = enter(gate, LARGE)
    follower = follow(gate, MAX_BYTES)
    clock.now += 1
    first.leave()
    second.leave()
    assert rest_of(gate, clock) == 6.0
    follower().leave()


def test_what_an_input_has_waited_counts_for_no_rest_behind_it(clock):  # noqa: F811
    gate = make_gate()
    first = enter(gate, MAX_BYTES)
    followers = [follow(gate, MAX_BYTES) for _ in range(2)]
    clock.now += 5
    first.leave()
    gate._num_busy = lambda: 1
    clock.now += 1
    gate._inside[0].leave()
    assert rest_of(gate, clock) == 1.0
    gate._inside[0].leave()
    for follower in followers:
        follower()


@pytest.mark.parametrize(("max_waiting", "max_busy"), [(1, 1000), (10, 101)])
def test_as_many_wait_at_the_gate_as_may_and_no_more(max_waiting, max_busy):
    gate = make_gate(max_waiting, max_busy, num_busy=100)
    places = [enter(gate, LARGE) for _ in range(2)]
    follower = follow(gate, LARGE)
    with pytest.raises(engine.Full):
        enter(gate, LARGE)
    gate._num_busy = lambda: 0  # nothing rests
    for place in places:
        place.leave()
    follower().leave()
    assert (gate.num_inside, gate.num_waiting) == (0, 0)


def test_one_alarm_ends_a_rest_however_many_come_meanwhile(clock):  # noqa: F811
    gate = make_gate(num_busy=1)
    with enter(gate, MAX_BYTES):
        followers = [follow(gate, MAX_BYTES)]
        clock.now += 3
    followers += [follow(gate, MAX_BYTES) for _ in range(3)]
    gate._num_busy = lambda: 0
    assert rest_of(gate, clock) == 3.0
    for _ in followers:
        wait_for(lambda: gate.num_inside == 1)
        gate._inside[0].leave()
    for follower in followers:
        follower()
