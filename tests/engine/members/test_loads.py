"""Servers share engines out by what these tell, and get along with unlike ones."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from switchyard.engine import messages
from switchyard.engine.errors import Full, PromptTooLong
from switchyard.engine.links.placing import choose, page_hashes
from switchyard.engine.links.replica import Placed, Replica
from switchyard.engine.schedule.alarms import ALARMS
from switchyard.engine.stats import Stats
from tests.engine.replicas.house import INFO, House, ToldLink
from tests.scripted import finished, job


@pytest.fixture(autouse=True)
def seeded():
    random.seed(1)


def shared(number=2, info=INFO, **config):
    house = House(number, is_shared=True, **config)
    for link in house.links:
        link.tell(messages.Loaded(info))
    return house


def numbers(house):
    return [len(link.jobs) for link in house.links]


def test_servers_with_a_job_each_begin_at_different_engines():
    begun = Counter()
    for _ in range(100):
        house = shared(3)
        house.submit("a")
        begun[numbers(house).index(1)] += 1
    assert min(begun[i] for i in range(3)) > 15


def test_a_job_goes_where_all_servers_together_have_fewest():
    house = shared(max_batch_size=8)
    first, second = house.links
    first.tell(Stats(1.0, num_active=3, num_pending=1))
    house.submit(*"abc")
    assert numbers(house) == [0, 3]
    second.tell(Stats(1.0, num_active=6))  # its other jobs came from other servers
    house.submit(*"de")
    assert numbers(house) == [2, 3]
    house.submit("f")  # the first has as many now: 4 were told, and 2 sent since
    assert sum(numbers(house)) == 6


def test_an_engine_that_is_busy_for_others_gets_nothing_until_it_tells_a_place():
    house = shared(max_batch_size=2)
    first, _ = house.links
    for link in house.links:
        link.tell(Stats(1.0, num_active=2))
    house.submit(*"abcd")
    assert numbers(house) == [0, 0]
    first.tell(Stats(2.0, num_active=1))
    assert numbers(house) == [1, 0]
    [name] = first.jobs
    first.tell(finished(job(name), 1))  # a place that it has not told yet
    assert numbers(house) == [2, 0]


def test_a_turn_of_a_chat_stays_with_its_pages_within_a_bound():
    house = shared(3, max_batch_size=32)
    prompt = tuple(range(512))
    house.submit("a", prompt=prompt)
    place = numbers(house).index(1)
    for i in range(2):
        house.submit(f"b{i}", prompt=(*prompt, i))
    assert numbers(house)[place] == 2  # not beyond a quarter more than the mean, and one


def replicas(number, busy=()):
    made = []
    for i in range(number):
        one = Replica(lambda i=i: ToldLink(None, f"unix:/{i}"), ())
        one.serve(INFO, "m")
        one.count(Stats(1.0, num_active=1 + (i in busy)))
        made.append(one)
    return made


def chosen(among):
    one = choose(among, Placed(job("a"), 0.0, page_hashes((), 256)), 8)
    return among.index(one)


def test_of_many_engines_the_better_of_two_at_random_is_taken():
    """All servers would take the least busy one of them at once."""
    few, many = replicas(8, busy=range(7)), replicas(9, busy=range(8))
    assert {chosen(few) for _ in range(50)} == {7}
    assert 4 < len({chosen(many) for _ in range(50)}) <= 9


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_job_that_a_full_engine_refuses_goes_to_another(is_cancelled):
    house = shared(max_batch_size=8)
    first, second = house.links
    second.tell(Stats(1.0, num_active=5))
    house.submit("a")
    assert first.jobs == ["a"]
    if is_cancelled:
        house.link.send(messages.Cancel("a"))
    first.tell(messages.Failed("a", Full("12 of 12 jobs are active or waiting")))
    if is_cancelled:
        assert house.told(messages.Finished) == [messages.Finished("a", "cancelled", 3, 0, 0)]
        assert second.jobs == []
        return
    assert house.told(messages.PutBack) == [messages.PutBack("a")]
    assert not house.told(messages.Failed)
    assert second.jobs == ["a"]
    house.submit("b")  # the first has not told since that it has a place
    assert second.jobs == ["a", "b"]
    first.tell(Stats(2.0, num_active=4))
    house.submit("c")
    assert first.jobs == ["a", "c"]


def test_full_is_the_clients_answer_where_all_are_full_or_its_text_has_begun():
    house = shared(max_batch_size=8)
    first, second = house.links
    second.tell(Stats(1.0, num_active=5))
    house.submit("a", "b")
    for link in (first, second):
        link.tell(messages.Failed("a", Full("full")))
    assert [(event.identifier, type(event.error)) for event in house.told(messages.Failed)] == [
        ("a", Full)
    ]
    second.tell(Stats(2.0, num_active=5))
    first.tell(messages.Chunk("b", "x", (1,)), messages.Failed("b", Full("full")))
    assert [event.identifier for event in house.told(messages.Failed)] == ["a", "b"]

    alone = shared(1)
    alone.submit("a")
    alone.links[0].tell(messages.Failed("a", Full("full")))
    assert [type(event.error) for event in alone.told(messages.Failed)] == [Full]


def test_what_is_promised_is_what_the_smallest_engine_holds():
    house = shared(info=replace(INFO, num_pages=8))
    house.links[1].tell(messages.Loaded(replace(INFO, max_seq_len=1024, device="another")))
    promised = house.told(messages.Loaded)[-1].info
    assert (promised.num_pages, promised.max_seq_len) == (8, 1024)
    house.links[0].tell(messages.Restarting("it was killed"), messages.Loaded(INFO))
    assert house.told(messages.Loaded)[-1].info == replace(INFO, max_seq_len=1024)
    assert house.states == ["ready", "ready"]


def test_a_job_goes_only_where_it_fits_and_ends_where_it_fits_nowhere():
    house = shared(info=replace(INFO, num_pages=8))
    first, second = house.links
    long = {"prompt": (1,) * 1200, "max_new_tokens": 700}
    first.tell(messages.Loaded(replace(INFO, max_seq_len=1024)))
    house.submit("a", **long)
    assert (first.jobs, second.jobs) == ([], ["a"])
    second.tell(finished(job("a"), 1), messages.Restarting("it was killed"))
    house.submit("b", **long)
    assert not house.told(messages.Failed)  # the second may come back
    second.tell(messages.Loaded(replace(INFO, num_pages=2)))
    failed = house.wait_for(messages.Failed)
    assert failed.identifier == "b" and type(failed.error) is PromptTooLong
    house.submit("c")
    assert sum(numbers(house)) == 2


@pytest.mark.parametrize(
    "change", [{"vocab_size": 1}, {"page_size": 128}, {"loras": ("x",)}], ids=str
)
def test_an_engine_of_another_kind_is_refused_and_tried_again(change, monkeypatch):
    alarms = []
    monkeypatch.setattr(ALARMS, "set", lambda seconds, call: alarms.append(call))
    house = House(2, is_shared=True)
    first, second = house.links
    first.tell(messages.Loaded(INFO))
    second.tell(messages.Loaded(replace(INFO, **change)))
    assert second.sent == [messages.Stop()]
    second.tell(messages.Stopped(None))
    [name] = change
    assert house.states == ["ready", "stopped"]
    assert f"it has {name}" in house.told(messages.ReplicaStates)[-1].states[1].reason
    alarms.pop()()
    house.links[-1].tell(messages.Loaded(INFO))
    assert house.states == ["ready", "ready"]


def test_one_that_comes_back_otherwise_is_compared_with_the_others_alone():
    house = shared(1)
    [link] = house.links
    link.tell(messages.Restarting("it was stopped"), messages.Loaded(replace(INFO, loras=("x",))))
    assert house.states == ["ready"] and house.told(messages.Loaded)[-1].info.loras == ("x",)
    house.submit("a")
    link.tell(messages.Started("a"), finished(job("a"), 1))
    assert [event.identifier for event in house.told(messages.Finished)] == ["a"]
