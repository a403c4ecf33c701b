"""Which job starts next: what holds whatever comes and goes."""

from collections import Counter
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.engine.schedule.pending import Pending
from tests.scripted import job

jobs = st.builds(
    dict,
    work=st.integers(2, 200),
    client=st.sampled_from("xyz"),
    priority=st.integers(-1, 1),
)
START = st.none()  # instead of a job that comes


def make(identifier, work, client="x", priority=0):
    return job(identifier, work - 1, prompt=(1,), client=client, priority=priority)


def work_of(one):
    return len(one.prompt) + one.max_new_tokens


def test_a_pair_for_guidance_is_the_work_of_both():
    pending = Pending()
    pending.push(job("pair", 10, prompt=(1,), negative_prompt=(1,)))
    pending.push(job("alone", 20, prompt=(1,)))
    assert [one.identifier for one in pending.candidates()] == ["alone", "pair"]


def replay(steps, factor):
    """Push or start, step by step, then start all that is left: ("came" | "started", job)."""
    pending, names = Pending(factor), count()
    for step in steps:
        if step is not None:
            one = make(f"job{next(names)}", **step)
            pending.push(one)
            yield "came", one
        elif pending:
            yield "started", start(pending)
    while pending:
        yield "started", start(pending)


def start(pending, has_room=lambda job: True):
    """Start the best job that has room; None if none has."""
    one = next((one for one in pending.candidates() if has_room(one)), None)
    if one is not None:
        pending.start(one.identifier)
    return one


@given(st.lists(jobs | START), st.sampled_from([1.0, 2.0, 4.0]))
@pytest.mark.parameter("priority")
def test_every_job_starts_once_and_a_lower_priority_only_in_its_turn(steps, factor):
    """Lower ones get a job's work for `factor` times as much of the highest."""
    waiting, came, done = {}, [], []
    passed = 0
    for what, one in replay(steps, factor):
        if what == "came":
            waiting[one.identifier] = one
            came.append(one.identifier)
            continue
        priorities = {other.priority for other in waiting.values()}
        if one.priority < max(priorities):
            assert passed >= factor * work_of(one)
            passed = 0
        elif len(priorities) > 1:
            passed += work_of(one)
        del waiting[one.identifier]
        done.append(one.identifier)
    assert sorted(came) == sorted(done)


@pytest.mark.parametrize("always_one", [True, False], ids=["one waits", "many wait"])
@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_a_lower_priority_does_not_starve_while_ever_more_of_a_higher_come(always_one, factor):
    """Also where of the higher there is never more than the one that starts next."""
    pending, clock, longest = Pending(factor), 0, 30
    pending.push(make("low", 50, priority=-1))
    for i in range(1000):
        for j in range(1 if always_one else 5):
            pending.push(make(f"high{i}-{j}", longest, f"client{j}"))
        one = start(pending)
        if one.identifier == "low":
            break
        clock += longest
    assert factor * 50 <= clock <= factor * 50 + longest


def test_however_many_lower_priorities_there_are_together_they_get_their_part_and_each_a_turn():
    pending, started, first = Pending(4.0), Counter(), {}
    for i in range(40):
        for priority in range(-10, 0):
            pending.push(make(f"low{priority}-{i}", 10, f"client{priority}", priority))
    for i in range(500):
        pending.push(make(f"high{i}", 10))
        one = start(pending)
        started[one.priority == 0] += 10
        first.setdefault(one.priority, i)
    assert started[False] / (started[False] + started[True]) == pytest.approx(1 / 5, abs=0.01)
    assert len(first) == 11 and max(first.values()) <= 10 * 5


@given(st.lists(st.integers(-2, 1), min_size=1, max_size=60), st.sampled_from([1.0, 2.0, 4.0]))
def test_priorities_take_turns_in_the_order_that_is_told(priorities, factor):
    pending = Pending(factor)
    for i, priority in enumerate(priorities):
        pending.push(make(f"job{i}", 30 + 7 * priority, priority=priority))
    told = pending.identifiers()
    assert told == tuple(start(pending).identifier for _ in priorities)


@settings(max_examples=120)
@given(st.lists(jobs | START, max_size=150), st.sampled_from([1.0, 1.5, 2.0, 4.0]))
def test_no_job_waits_longer_than_the_factor_times_its_fair_wait_and_one_job(steps, factor):
    clock, backlog, came, longest = Counter(), Counter(), {}, 0
    for what, one in replay(steps, factor):
        queue, work = (one.priority, one.client), work_of(one)
        if what == "came":
            backlog[queue] += work
            came[one.identifier] = clock[queue], backlog[queue]
            longest = max(longest, work)
        else:
            then, fair = came[one.identifier]
            clock[queue] += work
            backlog[queue] -= work
            assert clock[queue] - then <= factor * fair + longest


@settings(max_examples=120)
@given(
    st.dictionaries(
        st.sampled_from("wxyz"), st.lists(st.integers(2, 200), min_size=20, max_size=40), min_size=2
    )
)
def test_clients_that_all_wait_get_equal_shares_of_the_work(works):
    pending, started = Pending(), Counter()
    longest = {client: max(those) for client, those in works.items()}
    for client, those in works.items():
        for i, work in enumerate(those):
            pending.push(make(f"{client}{i}", work, client))
    left = Counter({client: len(those) for client, those in works.items()})
    while all(left.values()):
        one = start(pending)
        started[one.client] += work_of(one)
        left[one.client] -= 1
        ahead = max(started[client] - longest[client] for client in works)
        assert ahead <= min(started[client] + longest[client] for client in works)


def test_a_client_that_comes_back_has_no_arrears_and_no_credit():
    pending = Pending()
    for i in range(20):
        pending.push(make(f"x{i}", 10, "x"))
    pending.push(make("y-first", 100, "y"))
    assert [start(pending).identifier for _ in range(2)] == ["x0", "y-first"]
    pending.push(make("y-again", 10, "y"))  # has had its share for a while
    pending.push(make("z", 10, "z"))  # has not
    order = [start(pending).identifier for _ in range(12)]
    assert order.index("z") < 7 < order.index("y-again")


def test_ever_new_clients_do_not_starve_those_that_wait():
    pending = Pending()
    for i in range(3):
        pending.push(make(f"x{i}", 10, "x"))
    order = []
    for i in range(20):
        pending.push(make(f"new{i}", 10, f"client{i}"))
        order.append(start(pending).identifier)
    assert {"x0", "x1", "x2"} < set(order)


@given(st.lists(jobs, min_size=1))
def test_of_one_client_the_shortest_is_first(steps):
    pending = Pending(1000.0)
    for i, step in enumerate(steps):
        pending.push(make(f"job{i}", step["work"]))
    works = [work_of(start(pending)) for _ in steps]
    assert works == sorted(works)


def test_a_job_is_due_by_the_work_that_has_started_since_it_came():
    pending = Pending()
    pending.push(make("first", 10))
    for i in range(100):
        pending.push(make(f"job{i}", 10))
        start(pending)
    pending.push(make("long", 100))
    pending.push(make("short", 20))
    assert [one.identifier for one in pending.candidates()][1:] == ["short", "long"]


def test_with_a_factor_of_1_the_first_that_came_is_first():
    pending = Pending(1.0)
    for i, work in enumerate([50, 3, 40, 2]):
        pending.push(make(f"job{i}", work))
    assert pending.identifiers() == ("job0", "job1", "job2", "job3")


def test_what_is_put_back_is_first():
    pending = Pending()
    pending.push(make("short", 2))
    pending.push(make("back", 100), is_due=True)
    assert pending.identifiers() == ("back", "short")


@given(
    st.lists(st.tuples(st.integers(2, 60), st.sampled_from("xyz")), min_size=1, max_size=300),
    st.sampled_from([1.0, 2.0, 4.0]),
)
def test_a_job_without_room_is_passed_by_within_bounds(others, factor):
    """Others come without end and always have room; the big one has, once nothing may pass."""
    pending, passed = Pending(factor), 0
    pending.push(make("big", 100, priority=1))
    for i, (work, client) in enumerate(others):
        pending.push(make(f"job{i}", work, client))
        one = start(pending, lambda one: one.identifier != "big")
        if one is None:
            assert passed >= factor * 100
            assert pending.candidates()[0].identifier == "big"
            return
        passed += work_of(one)
        assert passed < factor * 100 + 60
    assert start(pending).identifier == "big"


@given(st.lists(st.tuples(st.sampled_from(["push", "start", "remove"]), jobs, st.integers(0, 99))))
def test_whatever_happens_it_holds_what_was_pushed_and_not_taken(steps):
    pending, model = Pending(), {}
    for i, (what, fields, pick) in enumerate(steps):
        if what == "push":
            one = model[f"job{i}"] = make(f"job{i}", **fields)
            pending.push(one)
        elif what == "start" and pending:
            del model[start(pending).identifier]
        elif what == "remove" and model:
            identifier = list(model)[pick % len(model)]
            assert pending.remove(identifier) is model.pop(identifier)
        assert len(pending) == len(model)
        order = pending.identifiers()
        assert sorted(order) == sorted(model)
        assert [one.identifier for one in pending.candidates()] == list(order[:8])
        assert len(pending._levels) == len({one.priority for one in model.values()})
    assert pending.remove("never") is None


@pytest.mark.parametrize("num_clients", [1, 1000])
def test_nothing_is_kept_of_clients_that_have_gone(num_clients):
    pending = Pending()
    pending.push(make("stays", 100, "stays"))
    for i in range(1000):
        pending.push(make(f"job{i}", 2, f"client{i % num_clients}"))
        start(pending)
    [level] = pending._levels.values()
    assert len(level.queues) + len(level.finishes) < 60


def test_a_large_limit_counts_as_four_usual_answers_in_the_order():
    pending = Pending()
    for name, limit, usual in (("long", 30_000, 500), ("usual", 30_000, 100), ("exact", 390, 500)):
        pending.push(job(name, limit, usual_tokens=usual))
    assert pending.identifiers() == ("exact", "usual", "long")


def test_a_job_is_due_by_the_answers_that_are_usual_whatever_the_limits_are():
    pending, num_before = Pending(2.0), 0
    pending.push(job("long", 30_000, usual_tokens=500))
    for i in range(100):
        pending.push(job(f"{i}", 30_000, usual_tokens=10))
    while start(pending).identifier != "long":
        num_before += 1
    assert num_before == -(-(3 + 4 * 500) // (3 + 4 * 10))
