"""Questions about the jobs of all servers, to replicas that a test plays."""

from types import SimpleNamespace

import pytest

from switchyard.engine import messages
from switchyard.engine.links import questions
from switchyard.engine.links.questions import Questions


@pytest.fixture
def asked(make_house):
    """A house whose replicas were asked by a question of each serial."""

    def ask(*serials, **more):
        house = make_house(**more)
        for serial in serials:
            house.link.send(messages.ListJobs(serial))
        return house

    return ask


def test_a_list_of_jobs_needs_no_replica_that_is_not_ready(asked):
    house = asked(7, is_loaded=False)
    assert house.wait_for(messages.JobList) == messages.JobList(7, ())
    one_hangs = asked()
    first, second = one_hangs.links
    first.tell(messages.Hanging("it is silent"))
    one_hangs.link.send(messages.ListJobs(8))
    assert messages.ListJobs(8) not in first.sent and second.sent[-1] == messages.ListJobs(8)


def test_what_waits_for_a_shared_engine_that_is_away_is_told_here():
    away = SimpleNamespace(status="loading", unstarted=["a"])
    [answer] = Questions(is_one_queue=True).ask(messages.ListPending(7), [away], ("b", "c"))
    assert answer == messages.PendingList(7, ("a", "b", "c"))


def test_the_oldest_question_gives_way_where_too_many_are_open(asked, monkeypatch):
    monkeypatch.setattr(questions, "MAX_OPEN", 2)
    house = asked(1, 2, 3)
    for link in house.links:
        link.tell(messages.JobList(1, ()), messages.JobList(2, ()), messages.JobList(3, ()))
    assert [answer.serial for answer in house.told(messages.JobList)] == [2, 3]


def test_a_list_has_the_jobs_of_all_replicas_once_the_last_has_answered(asked):
    def state(identifier):
        return messages.JobState(identifier, "decode", None, 1, 2, 3.0, 1, 0, "", "", "")

    house = asked(7)
    first, second = house.links
    first.tell(messages.JobList(7, (state("a-0"), state("a-1"))))
    assert not house.told(messages.JobList)
    second.tell(messages.JobList(7, (state("b-0"),)))
    told = house.wait_for(messages.JobList)
    assert {one.identifier for one in told.jobs} == {"a-0", "a-1", "b-0"}
