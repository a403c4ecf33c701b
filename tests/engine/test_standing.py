"""How an engine stands, and what it refuses then. Pure."""

from dataclasses import replace

import pytest

from switchyard import engine
from switchyard.engine.held import Tracked
from switchyard.engine.messages import (
    Hanging,
    Loaded,
    LoadProgress,
    ModelInfo,
    Recovering,
    ReplicaState,
    ReplicaStates,
    Restarting,
    Started,
    Stopped,
    Zombies,
)
from switchyard.engine.standing import Past, Standing
from switchyard.engine.stats import Stats, Totals
from tests.scripted import job

INFO = ModelInfo(2048, 4096, 256, 64, "scripted")


def test_a_model_that_is_loaded_anew_begins_without_progress():
    standing = Standing("tiny")
    standing.note(LoadProgress(1.0))
    standing.note(Loaded(INFO))
    assert standing.state == "ready"
    assert standing.note(Restarting("lost"))
    assert (standing.state, standing.progress, str(standing.error)) == ("loading", None, "lost")
    standing.note(LoadProgress(0.25))
    assert standing.progress == 0.25
    standing.note(Loaded(INFO))
    assert (standing.state, standing.error) == ("ready", None)


def test_a_model_that_recovers_is_loaded():
    standing = Standing("tiny")
    standing.note(Loaded(INFO))
    for event, state in ((Recovering("x"), "recovering"), (Hanging("x"), "hanging")):
        standing.note(event)
        assert (standing.state, standing.is_ready) == (state, True)


def test_a_model_that_is_going_comes_back_by_nothing_that_is_told():
    standing = Standing("tiny")
    standing.drain()
    assert standing.state == "draining"
    for event in (Loaded(INFO), Restarting("lost"), Loaded(INFO), Recovering("x")):
        standing.note(event)
        assert (standing.state, standing.is_ready) == ("draining", False)
    standing.note(Stopped(None))
    standing.drain()
    assert standing.state == "stopped"


def test_a_job_that_has_started_has_no_place_whatever_an_older_list_says():
    tracked = Tracked(job(), 0.0)
    assert (tracked.tell(1, INFO, 2.0).place, tracked.tell(None, INFO, 2.0).place) == (1, None)
    tracked.note(Started("a"))
    assert (tracked.tell(1, INFO, 2.0).place, tracked.tell(1, INFO, 2.0).age) == (None, 2.0)


def test_what_went_wrong_under_a_name_is_counted_on():
    old, new = Standing("tiny"), Standing("tiny")
    more = Hanging("x"), Hanging("y"), Restarting("lost"), Restarting("again")
    for event in (Zombies(2), Zombies(1), *more):
        old.note(event)
    new.note(Zombies(1))
    new.follow(Past(), old)
    assert (new.num_zombies, new.num_hangs, new.num_restarts) == (4, 2, 2)


def test_an_engine_that_drains_counts_on_under_its_name():
    old, new = Standing("tiny"), Standing("tiny")
    old.note(Stats(1.0, Totals(new_tokens=10)))
    new.follow(Past(), old)
    old.note(Stats(2.0, Totals(new_tokens=15)))
    assert new.stats.totals.new_tokens == 15
    old.note(Stopped(None))
    new.note(Stats(3.0, Totals(new_tokens=1)))
    assert new.stats.totals.new_tokens == 16


def test_no_error_is_logged_of_an_engine_that_was_told_to_end(caplog):
    standing = Standing("tiny")
    standing.note(Stopped(None))
    assert not caplog.records
    standing.note(Stopped(engine.DeviceLost("gone")))
    assert [record.getMessage() for record in caplog.records] == ["model tiny: gone"]


@pytest.mark.parametrize("number", [2**63, -(2**63)])
def test_a_whole_number_that_would_be_rounded_is_refused(number):
    with pytest.raises(engine.InvalidJob, match="beyond 2"):
        engine.constraints.json_schema({"const": number})
    engine.constraints.json_schema({"const": number // 2})


def test_what_replicas_tell_again_counts_once():
    standing = Standing("model")
    state = ReplicaState("hanging", "stuck", 0, (), "", None, num_restarts=2, num_hangs=1)
    for _ in range(2):
        standing.note(ReplicaStates((state, replace(state, num_hangs=3))))
    assert (standing.num_restarts, standing.num_hangs) == (4, 4)


def test_why_no_replica_is_ready_is_told_by_one_that_knows():
    standing = Standing("model")
    standing.note(Loaded(INFO))
    loading = ReplicaState("loading", "", 0, (), "", None, 0, 0)
    standing.note(ReplicaStates((loading, replace(loading, reason="it was killed"))))
    assert (standing.state, str(standing.error)) == ("recovering", "it was killed")
    standing.note(ReplicaStates((replace(loading, status="ready"), loading)))
    assert (standing.state, standing.error) == ("ready", None)
    standing.note(ReplicaStates((replace(loading, status="hanging"), loading)))
    assert standing.state == "recovering" and str(standing.error)
    standing.note(ReplicaStates((replace(loading, status="hanging"),) * 2))
    assert standing.state == "hanging"


def test_a_stopped_replica_is_not_the_reason_for_those_that_come_back():
    standing = Standing("model")
    standing.note(Loaded(INFO))
    gone = ReplicaState("stopped", "another version", 0, (), "", None, 0, 0)
    left = replace(gone, status="recovering", reason="out of memory")
    standing.note(ReplicaStates((gone, left)))
    assert (standing.state, str(standing.error)) == ("recovering", "out of memory")
    for states, reason in (((gone,), "another version"), ((), "no engine")):
        standing.note(ReplicaStates(states))
        assert (standing.state, str(standing.error)) == ("recovering", reason)


def test_engines_that_promise_less_than_before_are_no_new_load():
    standing = Standing("model")
    standing.note(Loaded(INFO))
    seconds = standing.load_seconds
    smaller = replace(INFO, num_pages=32)
    standing.note(Loaded(smaller))
    assert (standing.info, standing.load_seconds) == (smaller, seconds)
