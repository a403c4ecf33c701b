"""Jobs are shared out to replicas, wait, are listed and counted."""

import math
from dataclasses import replace

import pytest

from switchyard.engine import messages
from switchyard.engine.config import Lora, ModelConfig
from switchyard.engine.errors import ModelError
from tests.engine.replicas.house import INFO
from tests.scripted import finished, job


def test_it_is_loaded_with_its_first_replica(make_house):
    house = make_house(is_loaded=False)
    house.submit("early")
    first, second = house.links
    first.tell(messages.LoadProgress(0.5))
    second.tell(messages.LoadProgress(0.25))
    assert [event.share for event in house.told(messages.LoadProgress)] == [0.5, 0.5]
    second.tell(messages.Loaded(INFO))
    assert house.told(messages.Loaded) == [messages.Loaded(INFO)]
    assert (first.jobs, second.jobs) == ([], ["early"])
    first.tell(messages.LoadProgress(0.75), messages.Loaded(INFO))
    assert len(house.told(messages.Loaded)) == 1 and len(house.told(messages.LoadProgress)) == 2
    assert house.states == ["ready", "ready"]


def test_jobs_go_where_there_are_fewest_and_wait_here_for_a_place(make_house):
    house = make_house(max_batch_size=2)
    house.submit(*"abcdef")
    first, second = house.links
    assert (first.jobs, second.jobs) == (["a", "c"], ["b", "d"])
    second.tell(messages.Started("b"), messages.Finished("b", "stop", 3, 1, 0))
    assert second.jobs == ["b", "d", "e"] and first.jobs == ["a", "c"]


def test_the_best_that_waits_is_next_whatever_replica_has_a_place(make_house):
    house = make_house(max_batch_size=1, max_priority=1)
    house.submit(*"abc")
    house.submit("urgent", priority=1)
    first, second = house.links
    second.tell(finished(job("b"), 1))
    assert second.jobs == ["b", "urgent"]
    first.tell(finished(job("a"), 1))
    assert first.jobs == ["a", "c"]


def test_a_job_for_which_a_replica_has_no_pages_waits_here(make_house):
    house = make_house(number=1)
    [link] = house.links
    long = {"max_new_tokens": 2000, "usual_tokens": 2000}
    house.submit("large", **long)
    link.tell(messages.Started("large"))
    house.submit("as large", **long)
    link.tell(messages.Started("as large"))  # they have a prompt in common
    house.submit("third", **long)
    assert link.jobs == ["large", "as large", "third"]
    house.submit("fourth", **long)
    assert link.jobs == ["large", "as large", "third"]  # whose turn is not told yet
    link.tell(finished(job("large"), 1))
    assert link.jobs == ["large", "as large", "third"]
    link.tell(messages.Started("third"))
    assert link.jobs == ["large", "as large", "third", "fourth"]


def test_pages_go_where_they_have_been_seen_within_a_bound(make_house):
    house = make_house(max_batch_size=32)
    first, second = house.links
    prompt = tuple(range(512))
    house.submit("a", prompt=prompt)
    house.submit("other")
    house.submit("b", prompt=(*prompt, 1))
    assert (first.jobs, second.jobs) == (["a", "b"], ["other"])
    for i in range(8):
        house.submit(f"more-{i}", prompt=prompt)
    # Not beyond a quarter more than the mean, and one; then the other has seen them, too.
    assert first.jobs[:4] == ["a", "b", "more-0", "more-1"]
    assert second.jobs[:2] == ["other", "more-2"]


def test_pages_of_guesses_count_before_a_job_starts(make_house):
    house = make_house(number=1, is_loaded=False)
    [link] = house.links
    link.tell(messages.Loaded(replace(INFO, num_pages=2, num_draft_tokens=5)))
    house.submit("small", max_new_tokens=100)
    house.submit("waits", max_new_tokens=250, usual_tokens=250)  # a page, and with guesses a second
    assert link.jobs == ["small"]


def test_a_replica_is_known_for_the_pages_that_it_saw_last(make_house):
    """As many as it has: of others, its cache may have none any more."""
    house = make_house(is_loaded=False)
    first, second = house.links
    for link in house.links:
        link.tell(messages.Loaded(replace(INFO, num_pages=4)))
    kept, old, new = (tuple(range(i, i + 512)) for i in (0, 600, 1200))
    for i, prompt in enumerate((kept, old, kept, new)):
        house.submit(f"{i}", prompt=prompt)
        first.tell(finished(job(f"{i}"), 1))
    house.submit("busy")
    house.submit("kept", prompt=kept)
    first.tell(finished(job("kept"), 1))
    house.submit("old", prompt=old)
    assert first.jobs == [*"0123", "busy", "kept"] and second.jobs == ["old"]


def test_all_are_told_to_stop(make_house):
    house = make_house()
    house.link.send(messages.Stop())
    for link in house.links:
        assert link.sent == [messages.Stop()]
        link.tell(messages.Stopped(None))
    assert house.told(messages.Stopped) == [messages.Stopped(None)]


def test_what_waits_is_listed_behind_what_has_not_begun(make_house):
    house = make_house(max_batch_size=2)
    house.submit(*"abcdef")
    house.links[0].tell(messages.Started("a"))
    house.link.send(messages.ListPending(7))
    assert house.wait_for(messages.PendingList) == messages.PendingList(7, tuple("cbdef"))


def test_a_job_that_waits_is_cancelled_here_and_one_at_work_there(make_house):
    house = make_house(max_batch_size=1)
    first, second = house.links
    house.submit(*"abc")
    house.link.send(messages.Cancel("c"))
    assert house.wait_for(messages.Finished) == messages.Finished("c", "cancelled", 3, 0, 0)
    house.link.send(messages.Cancel("a"))
    house.link.send(messages.Cancel("unknown"))
    assert first.sent[-1] == messages.Cancel("a") and len(second.sent) == 1
    first.tell(messages.Finished("a", "cancelled", 3, 0, 0))
    assert [event.identifier for event in house.told(messages.Finished)] == ["c", "a"]


@pytest.mark.parametrize(
    ("config", "param"),
    [
        ({"silence_timeout": 0.0}, "silence_timeout"),
        ({"loras": (Lora("a", "a", math.inf),)}, "loras"),
    ],
)
def test_what_can_not_be_is_refused(config, param):
    with pytest.raises(ModelError) as error:
        ModelConfig("", "model", **config)
    assert error.value.param == param


@pytest.mark.parametrize(
    ("factor", "order"), [(1.0, ["first", "u0", "low", "u1"]), (3.0, ["first", "u0", "u1", "u2"])]
)
def test_the_setting_says_when_a_lower_priority_has_its_turn(make_house, factor, order):
    house = make_house(1, max_batch_size=1, max_priority=1, fair_wait_factor=factor)
    house.submit("first")
    house.submit("low")
    house.submit(*(f"u{i}" for i in range(5)), priority=1)
    [link] = house.links
    for name in order[:-1]:
        link.tell(messages.Started(name), finished(job(name), 1))
    assert link.jobs[: len(order)] == order
