"""Replicas are lost, hang, are loaded again: what becomes of their jobs."""

import time
import types
from dataclasses import replace

from switchyard.engine import messages
from switchyard.engine.errors import BatchFailed, DeviceLost, ModelError
from switchyard.engine.schedule.alarms import ALARMS
from switchyard.engine.stats import DeviceMemory, Occupancy, Stats, Totals
from tests.engine.replicas.house import INFO
from tests.scripted import finished, job


def test_what_a_lost_replica_had_told_ends_and_the_rest_goes_on_elsewhere(make_house, caplog):
    caplog.set_level("INFO")
    house = make_house(max_batch_size=2)
    first, second = house.links
    house.submit(*"abcdef")
    first.tell(messages.Started("a"), messages.Started("c"), messages.Chunk("a", "x", (1,)))
    first.tell(messages.Restarting("it was killed"))
    [failed] = house.told(messages.Failed)
    assert failed.identifier == "a" and type(failed.error) is BatchFailed
    assert str(failed.error) == "it was killed"
    assert house.told(messages.PutBack) == [messages.PutBack("c")]
    assert house.states == ["loading", "ready"]
    second.tell(finished(job("b"), 1), finished(job("d"), 1))
    assert second.jobs == ["b", "d", "c", "e"]  # it is due before those that came later
    assert {command.time for command in second.sent} == {0.0}  # as old as they are
    first.tell(messages.Loaded(INFO))
    assert first.jobs == ["a", "c", "f"] and house.states == ["ready", "ready"]
    assert caplog.text.count("serves again, after: it was killed") == 1


def test_a_replica_that_was_lost_is_known_for_no_page(make_house):
    house = make_house()
    first, second = house.links
    prompt = tuple(range(256))
    house.submit("a", prompt=prompt)
    first.tell(finished(job("a"), 1), messages.Restarting("it was killed"), messages.Loaded(INFO))
    house.submit("busy")
    house.submit("again", prompt=prompt)
    assert (first.jobs, second.jobs) == (["a", "busy"], ["again"])


def test_a_job_is_moved_once(make_house):
    house = make_house(number=3)
    house.submit("poison")
    for link in house.links[:2]:
        assert link.jobs == ["poison"]
        link.tell(messages.Restarting("it was killed"))
    assert house.links[2].jobs == []
    assert house.told(messages.PutBack) == [messages.PutBack("poison")]
    [failed] = house.told(messages.Failed)
    assert failed.identifier == "poison"


def test_jobs_wait_while_the_only_replica_is_loaded_anew(make_house):
    house = make_house(number=1, max_batch_size=1)
    [link] = house.links
    house.submit("a", "b")
    link.tell(messages.Restarting("it was killed"))
    house.submit("c")
    assert link.jobs == ["a"] and not house.told(messages.Failed)
    link.tell(messages.Loaded(INFO))
    assert link.jobs == ["a", "a"]
    [state] = house.told(messages.ReplicaStates)[-1].states
    assert (state.num_restarts, state.num_hangs) == (1, 0)
    assert (state.status, state.reason, state.gpus) == ("ready", "", (0,))


def test_a_replica_that_hangs_is_told_to_forget_and_gets_jobs_behind_its_answer(make_house):
    house = make_house()
    first, second = house.links
    house.submit("a", "b")
    first.tell(messages.Started("a"), messages.Hanging("it is silent"))
    *_, abandon, fence = first.sent
    assert isinstance(abandon, messages.Abandon) and isinstance(fence, messages.ListPending)
    assert house.states == ["hanging", "ready"] and second.jobs == ["b", "a"]
    assert [one.num_hangs for one in house.told(messages.ReplicaStates)[-1].states] == [1, 0]
    house.link.send(messages.ListPending(1))
    assert house.wait_for(messages.PendingList).identifiers == ("b", "a")  # it begins again
    # What it had begun before it read that, and its own recovery:
    first.tell(
        messages.Chunk("a", "late", (1,)),
        messages.Recovering("x"),
        messages.Recovered(),
        messages.PendingList(99, ()),
    )
    first.tell(messages.Failed("a", BatchFailed("late")))
    assert house.states == ["hanging", "ready"] and not house.told(messages.Chunk, messages.Failed)
    assert len(house.told(messages.PendingList)) == 1  # it answers no question of a client
    house.submit("c")
    assert first.jobs == ["a"]
    first.tell(
        messages.Recovering("abandoned"),
        messages.Recovered(),
        messages.PendingList(fence.serial, ()),
    )
    assert house.states == ["ready", "ready"]
    assert [one.reason for one in house.told(messages.ReplicaStates)[-1].states] == ["", ""]
    house.submit("d")
    assert first.jobs == ["a", "d"]


def test_none_gets_jobs_while_it_recovers(make_house):
    house = make_house()
    first, second = house.links
    first.tell(messages.Recovering("a step failed"))
    house.submit("a", "b")
    assert (first.jobs, second.jobs) == ([], ["a", "b"])
    first.tell(messages.Recovered())
    house.submit("c")
    assert first.jobs == ["c"]


def test_one_that_is_not_like_the_first_is_refused(make_house, monkeypatch):
    tries = []
    monkeypatch.setattr(ALARMS, "set", lambda seconds, call: tries.append(call))
    house = make_house(is_loaded=False)
    first, second = house.links
    first.tell(messages.Loaded(INFO))
    second.tell(messages.Loaded(replace(INFO, loras=("other",))))
    assert second.sent == [messages.Stop()]
    second.tell(messages.Stopped(None))
    house.submit("a", "b")
    assert first.jobs == ["a", "b"] and not tries
    _, state = house.told(messages.ReplicaStates)[-1].states
    assert state.status == "stopped" and "it has loras ('other',)" in state.reason
    first.tell(messages.Stopped(DeviceLost("the device is lost")))
    [end] = house.told(messages.Stopped)
    assert type(end.error) is DeviceLost


def test_one_that_can_not_load_is_tried_anew_while_there_are_others(make_house, monkeypatch):
    waits = []
    monkeypatch.setattr(ALARMS, "set", lambda seconds, call: waits.append((seconds, call)))
    house = make_house(is_loaded=False)
    first, second = house.links
    first.tell(messages.Stopped(ModelError("no room")))
    assert not house.told(messages.Stopped)
    second.tell(messages.Loaded(INFO))
    for seconds in (5, 10, 20, 40, 80, 160, 300, 300):
        due, call = waits.pop()
        assert due == seconds and not waits
        call()
        assert house.links[-1].is_started and house.states[0] in ("stopped", "loading")
        house.links[-1].tell(messages.Stopped(ModelError("no room")))
    waits.pop()[1]()
    house.links[-1].tell(messages.Loaded(INFO))
    assert house.states == ["ready", "ready"]
    house.links[-1].tell(messages.Stopped(ModelError("lost")))
    assert waits.pop()[0] == 5


def test_it_ends_with_its_last_replica(make_house, monkeypatch):
    waits = []
    monkeypatch.setattr(ALARMS, "set", lambda seconds, call: waits.append(call))
    house = make_house()
    first, second = house.links
    house.submit("a")
    first.tell(messages.Stopped(DeviceLost("one")))
    assert not house.told(messages.Stopped)
    second.tell(messages.Stopped(DeviceLost("two")))
    [end] = house.told(messages.Stopped)
    assert str(end.error) == "two"
    for call in waits:
        call()
    assert len(house.links) == 2


def test_once_it_is_to_stop_no_job_is_moved_and_no_end_is_an_error(make_house):
    house = make_house()
    first, second = house.links
    house.submit("a")
    house.link.send(messages.Stop())
    told = len(house.told(messages.ReplicaStates))
    first.tell(messages.Restarting("it was killed"))
    [failed] = house.told(messages.Failed)
    assert failed.identifier == "a" and second.jobs == []
    for link in house.links:
        link.tell(messages.Stopped(DeviceLost("the device is lost")))
    assert house.told(messages.Stopped) == [messages.Stopped(None)]
    assert len(house.told(messages.ReplicaStates)) == told


def test_all_replicas_together_are_waited_for_so_long(make_house, monkeypatch):
    now, waits = [0.0], []

    def join(timeout):
        waits.append(timeout)
        now[0] += 3
        return len(waits) < 6

    clock = types.SimpleNamespace(monotonic=lambda: now[0], time=lambda: 0.0)
    monkeypatch.setattr("switchyard.engine.links.replicas.time", clock)
    house = make_house(number=3)
    for link in house.links:
        link.join = join
    assert not house.link.join(5.0)
    assert waits == [5.0, 2.0, 0, 0, 0, 0]


def test_a_client_that_has_seen_logprobs_of_its_prompt_sees_them_once(make_house):
    house = make_house()
    first, second = house.links
    house.submit("a")
    first.tell(
        messages.Started("a"),
        messages.PromptLogprobs("a", ()),
        messages.Restarting("it was killed"),
    )
    assert [one.identifier for one in house.told(messages.Failed)] == ["a"]
    assert second.jobs == []


def test_a_job_that_is_put_back_has_a_place_again(make_house):
    house = make_house(number=1)
    [link] = house.links
    house.submit("a")
    link.tell(messages.Started("a"), messages.PutBack("a"))
    house.link.send(messages.ListPending(1))
    assert house.wait_for(messages.PendingList).identifiers == ("a",)


def test_a_job_that_was_cancelled_amid_its_text_ends_with_its_replica(make_house):
    """Its end would say that there was no text."""
    house = make_house()
    house.submit("a")
    house.links[0].tell(messages.Chunk("a", "x", (1,)))
    house.link.send(messages.Cancel("a"))
    house.links[0].tell(messages.Restarting("it was killed"))
    assert [one.identifier for one in house.told(messages.Failed)] == ["a"]
    assert not house.told(messages.Finished)


def test_a_cancelled_job_is_not_begun_anew_elsewhere(make_house):
    house = make_house()
    first, second = house.links
    house.submit("a", "b")
    house.link.send(messages.Cancel("a"))
    first.tell(messages.Restarting("it was killed"))
    assert house.told(messages.Finished) == [messages.Finished("a", "cancelled", 3, 0, 0)]
    assert second.jobs == ["b"]


def test_numbers_are_those_of_all_and_go_on_over_a_restart(make_house):
    house = make_house(max_batch_size=1)
    first, second = house.links
    begin = time.monotonic()
    house.submit(*"abc")
    memory = DeviceMemory("cuda:0", 1, 2, 3, 4)
    first.tell(Stats(1.0, Totals(new_tokens=3), num_active=1, occupancy=Occupancy(1, 2, (memory,))))
    second.tell(
        Stats(
            *(2.0, Totals(new_tokens=4)),
            num_active=1,
            num_pending=3,  # of a shared engine
            occupancy=Occupancy(3, 4, (memory,)),
        )
    )
    told = house.told(Stats)[-1]
    assert begin <= told.time <= time.monotonic()  # clocks of two machines differ
    assert told.totals.new_tokens == 7
    assert (told.num_active, told.num_pending) == (2, 4)
    assert told.occupancy == Occupancy(4, 6, (memory, memory))
    first.tell(messages.Restarting("it was killed"))
    told = house.told(Stats)[-1]  # the first loads, and holds nothing
    assert (told.totals.new_tokens, told.num_active) == (7, 1)
    assert told.occupancy == Occupancy(3, 4, (memory,))
    second.tell(Stats(2.5, Totals(new_tokens=4)))
    first.tell(Stats(3.0, Totals(new_tokens=1), began=2.5))
    assert house.told(Stats)[-1].totals.new_tokens == 8
    first.tell(messages.Restarting("the connection was lost, and it was not"))
    first.tell(Stats(4.0, Totals(new_tokens=3), num_active=1, began=2.5))
    assert house.told(Stats)[-1].totals.new_tokens == 10
    first.tell(messages.Stopped(DeviceLost("the device is lost")))
    assert house.told(Stats)[-1].num_active == 0
