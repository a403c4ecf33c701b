"""What an input at the gate takes of the others' time."""

import sys
from types import SimpleNamespace

import pytest

from switchyard import engine
from switchyard.app.http import gate as gate_module
from switchyard.app.http.gate import LARGE, MAX_BYTES, SWITCH_INTERVAL
from tests.app.test_gate import enter, in_thread, make_gate, wait_until


def test_a_process_whose_threads_take_even_shorter_turns_keeps_them():
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL / 5)
    try:
        with enter(make_gate(), LARGE):
            assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL / 5, rel=0.05)
    finally:
        sys.setswitchinterval(usual)


def test_of_two_that_leave_together_the_longer_one_counts_for_the_next(monkeypatch):
    now, alarms = [100.0], []
    monkeypatch.setattr(gate_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    alarm = SimpleNamespace(set=lambda seconds, call: alarms.append((seconds, call)))
    monkeypatch.setattr(engine, "ALARMS", alarm)
    gate = make_gate(num_busy=1)
    first = enter(gate, LARGE)
    now[0] += 5
    second = enter(gate, LARGE)
    follower = in_thread(enter, gate, MAX_BYTES)
    wait_until(lambda: gate.num_waiting == 1)
    now[0] += 1
    first.leave()
    second.leave()
    [(rest, end)] = [alarm for alarm in alarms if alarm[1] == gate._end_rest]
    assert (rest, gate.num_inside) == (6.0, 0)
    now[0] += rest
    end()
    follower().leave()
