"""Several engine threads as one link: what is lost with one of them, and what isn't."""

import functools
import os
import signal
import threading

import pytest

from switchyard import engine
from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import BatchFailed, DeviceLost, ModelError
from switchyard.engine.links import replicas
from switchyard.engine.links.placing import page_hashes
from switchyard.engine.links.replicas import ReplicaLink
from switchyard.engine.memory import gpus
from switchyard.engine.messages import (
    Abandon,
    Cancel,
    Chunk,
    Failed,
    Finished,
    Hanging,
    ListPending,
    Loaded,
    LoadProgress,
    ModelInfo,
    PendingList,
    PutBack,
    Recovered,
    Recovering,
    ReplicaStates,
    Restarting,
    Started,
    Stop,
    Stopped,
    Submit,
)
from switchyard.engine.schedule.alarms import ALARMS
from switchyard.engine.stats import DeviceMemory, Occupancy, Stats, Totals
from tests.scripted import ScriptedBackend, count, finished, job, ticking

INFO = ModelInfo(2048, 4096, 256, 16, "scripted")


class ToldLink:
    """To no thread: a test says what it tells, and reads what it was sent."""

    at = ""

    def __init__(self, deliver):
        self.tell = lambda *events: deliver(events)
        self.sent = []
        self.pid = None
        self.is_started = False

    def start(self):
        self.is_started = True

    def send(self, command):
        self.sent.append(command)

    def join(self, timeout=None):
        return True

    @property
    def jobs(self):
        """Identifiers of what was submitted to it."""
        return [command.job.identifier for command in self.sent if isinstance(command, Submit)]


class House:
    """A link over so many replicas, and what it has delivered."""

    def __init__(self, number, **config):
        self.links = []
        self.events = []
        self.came = threading.Condition()
        self.link = ReplicaLink(
            ModelConfig("", "model", **config),
            [((i,), self._make) for i in range(number)],
            self._take,
        )
        self.link.start()

    def _make(self, deliver):
        self.links.append(ToldLink(deliver))
        return self.links[-1]

    def _take(self, events):
        with self.came:
            self.events += events
            self.came.notify_all()

    def submit(self, *identifiers, **more):
        for identifier in identifiers:
            self.link.send(Submit(job(identifier, **more), 0.0))

    def told(self, *kinds):
        return [event for event in self.events if isinstance(event, kinds)]

    def wait_for(self, kind):
        with self.came:
            assert self.came.wait_for(lambda: self.told(kind), 20)
            return self.told(kind)[-1]

    @property
    def states(self):
        return [one.status for one in self.told(ReplicaStates)[-1].states]


@pytest.fixture
def make_house():
    def make(number=2, is_loaded=True, **config):
        house = House(number, **config)
        for link in house.links if is_loaded else ():
            link.tell(Loaded(INFO))
        return house

    return make


def test_it_is_loaded_with_its_first_replica(make_house):
    house = make_house(is_loaded=False)
    house.submit("early")
    first, second = house.links
    first.tell(LoadProgress(0.5))
    second.tell(LoadProgress(0.25))
    assert [event.share for event in house.told(LoadProgress)] == [0.5, 0.5]
    second.tell(Loaded(INFO))
    assert house.told(Loaded) == [Loaded(INFO)]
    assert (first.jobs, second.jobs) == ([], ["early"])
    first.tell(LoadProgress(0.75), Loaded(INFO))
    assert len(house.told(Loaded)) == 1 and len(house.told(LoadProgress)) == 2
    assert house.states == ["ready", "ready"]


def test_jobs_go_where_there_are_fewest_and_wait_here_for_a_place(make_house):
    house = make_house(max_batch_size=2)
    house.submit(*"abcdef")
    first, second = house.links
    assert (first.jobs, second.jobs) == (["a", "c"], ["b", "d"])
    second.tell(Started("b"), Finished("b", "stop", 3, 1, 0))
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
    house.submit("large", max_new_tokens=2000)
    link.tell(Started("large"))
    house.submit("as large", max_new_tokens=2000)
    link.tell(Started("as large"))  # they have a prompt in common
    house.submit("third", max_new_tokens=2000)
    assert link.jobs == ["large", "as large", "third"]
    house.submit("fourth", max_new_tokens=2000)
    assert link.jobs == ["large", "as large", "third"]  # whose turn is not told yet
    link.tell(finished(job("large"), 1))
    assert link.jobs == ["large", "as large", "third"]
    link.tell(Started("third"))
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


def test_a_page_is_known_with_all_before_it():
    a, b = page_hashes(range(4), 2)
    assert page_hashes((0, 1, 2, 3, 9), 2) == [a, b]
    assert page_hashes((7, 8, 2, 3), 2)[1] != b
    assert page_hashes((0,), 2) == []


def test_what_a_lost_replica_had_told_ends_and_the_rest_goes_on_elsewhere(make_house):
    house = make_house(max_batch_size=2)
    first, second = house.links
    house.submit(*"abcdef")
    first.tell(Started("a"), Started("c"), Chunk("a", "x", (1,)))
    first.tell(Restarting("it was killed"))
    [failed] = house.told(Failed)
    assert failed.identifier == "a" and type(failed.error) is BatchFailed
    assert str(failed.error) == "it was killed"
    assert house.told(PutBack) == [PutBack("c")]
    assert house.states == ["loading", "ready"]
    second.tell(finished(job("b"), 1), finished(job("d"), 1))
    assert second.jobs == ["b", "d", "c", "e"]  # it is due before those that came later
    first.tell(Loaded(INFO))
    assert first.jobs == ["a", "c", "f"] and house.states == ["ready", "ready"]


def test_a_job_is_moved_once(make_house):
    house = make_house(number=3)
    house.submit("poison")
    for link in house.links[:2]:
        assert link.jobs == ["poison"]
        link.tell(Restarting("it was killed"))
    assert house.links[2].jobs == []
    assert house.told(PutBack) == [PutBack("poison")]
    [failed] = house.told(Failed)
    assert failed.identifier == "poison"


def test_jobs_wait_while_the_only_replica_is_loaded_anew(make_house):
    house = make_house(number=1, max_batch_size=1)
    [link] = house.links
    house.submit("a", "b")
    link.tell(Restarting("it was killed"))
    house.submit("c")
    assert link.jobs == ["a"] and not house.told(Failed)
    link.tell(Loaded(INFO))
    assert link.jobs == ["a", "a"]
    [state] = house.told(ReplicaStates)[-1].states
    assert (state.num_restarts, state.num_hangs) == (1, 0)


def test_a_replica_that_hangs_is_told_to_forget_and_gets_jobs_behind_its_answer(make_house):
    house = make_house()
    first, second = house.links
    house.submit("a", "b")
    first.tell(Started("a"), Hanging("it is silent"))
    *_, abandon, fence = first.sent
    assert isinstance(abandon, Abandon) and isinstance(fence, ListPending)
    assert house.states == ["hanging", "ready"] and second.jobs == ["b", "a"]
    # What it had begun before it read that, and a recovery of its own:
    first.tell(Chunk("a", "late", (1,)), Recovering("x"), Recovered(), PendingList(99, ()))
    first.tell(Failed("a", BatchFailed("late")))
    assert house.states == ["hanging", "ready"] and not house.told(Chunk, Failed)
    house.submit("c")
    assert first.jobs == ["a"]
    first.tell(Recovering("abandoned"), Recovered(), PendingList(fence.serial, ()))
    assert house.states == ["ready", "ready"]
    house.submit("d")
    assert first.jobs == ["a", "d"]


def test_none_gets_jobs_while_it_recovers(make_house):
    house = make_house()
    first, second = house.links
    first.tell(Recovering("a step failed"))
    house.submit("a", "b")
    assert (first.jobs, second.jobs) == ([], ["a", "b"])
    first.tell(Recovered())
    house.submit("c")
    assert first.jobs == ["c"]


def test_one_that_is_not_like_the_first_is_refused(make_house):
    house = make_house(is_loaded=False)
    first, second = house.links
    first.tell(Loaded(INFO))
    second.tell(Loaded(ModelInfo(2048, 4096, 256, 8, "scripted")))
    assert second.sent == [Stop()]
    second.tell(Stopped(None))
    house.submit("a", "b")
    assert first.jobs == ["a", "b"]
    _, state = house.told(ReplicaStates)[-1].states
    assert state.status == "stopped" and "num_pages=8" in state.reason
    first.tell(Stopped(DeviceLost("the device is lost")))
    [end] = house.told(Stopped)
    assert type(end.error) is DeviceLost


def test_one_that_can_not_load_is_tried_anew_while_there_are_others(make_house, monkeypatch):
    waits = []
    monkeypatch.setattr(ALARMS, "set", lambda seconds, call: waits.append((seconds, call)))
    house = make_house(is_loaded=False)
    first, second = house.links
    first.tell(Stopped(ModelError("no room")))
    assert not house.told(Stopped)
    second.tell(Loaded(INFO))
    for seconds in (5, 10, 20):
        due, call = waits.pop()
        assert due == seconds and not waits
        call()
        assert house.links[-1].is_started and house.states[0] in ("stopped", "loading")
        house.links[-1].tell(Stopped(ModelError("no room")))
    waits.pop()[1]()
    house.links[-1].tell(Loaded(INFO))
    assert house.states == ["ready", "ready"]
    house.links[-1].tell(Stopped(ModelError("lost")))
    assert waits.pop()[0] == 5


def test_it_ends_with_its_last_replica(make_house, monkeypatch):
    waits = []
    monkeypatch.setattr(ALARMS, "set", lambda seconds, call: waits.append(call))
    house = make_house()
    first, second = house.links
    house.submit("a")
    first.tell(Stopped(DeviceLost("one")))
    assert not house.told(Stopped)
    second.tell(Stopped(DeviceLost("two")))
    [end] = house.told(Stopped)
    assert str(end.error) == "two"
    for call in waits:
        call()
    assert len(house.links) == 2


def test_all_are_told_to_stop(make_house):
    house = make_house()
    house.link.send(Stop())
    for link in house.links:
        assert link.sent == [Stop()]
        link.tell(Stopped(None))
    assert house.told(Stopped) == [Stopped(None)]


def test_what_waits_is_listed_behind_what_has_not_begun(make_house):
    house = make_house(max_batch_size=2)
    house.submit(*"abcdef")
    house.links[0].tell(Started("a"))
    house.link.send(ListPending(7))
    assert house.wait_for(PendingList) == PendingList(7, ("c", "b", "d", "e", "f"))


def test_a_job_that_waits_is_cancelled_here_and_one_at_work_there(make_house):
    house = make_house(max_batch_size=1)
    first, second = house.links
    house.submit(*"abc")
    house.link.send(Cancel("c"))
    assert house.wait_for(Finished) == Finished("c", "cancelled", 3, 0, 0)
    house.link.send(Cancel("a"))
    house.link.send(Cancel("unknown"))
    assert first.sent[-1] == Cancel("a") and len(second.sent) == 1
    first.tell(Finished("a", "cancelled", 3, 0, 0))
    assert [event.identifier for event in house.told(Finished)] == ["c", "a"]


def test_a_cancelled_job_is_not_begun_anew_elsewhere(make_house):
    house = make_house()
    first, second = house.links
    house.submit("a", "b")
    house.link.send(Cancel("a"))
    first.tell(Restarting("it was killed"))
    assert house.told(Finished) == [Finished("a", "cancelled", 3, 0, 0)]
    assert second.jobs == ["b"]


def test_numbers_are_those_of_all_and_go_on_over_a_restart(make_house):
    house = make_house(max_batch_size=1)
    first, second = house.links
    house.submit(*"abc")
    memory = DeviceMemory("cuda:0", 1, 2, 3, 4)
    first.tell(Stats(1.0, Totals(new_tokens=3), num_active=1, occupancy=Occupancy(1, 2, (memory,))))
    second.tell(
        Stats(2.0, Totals(new_tokens=4), num_active=1, occupancy=Occupancy(3, 4, (memory,)))
    )
    told = house.told(Stats)[-1]
    assert (told.time, told.totals.new_tokens) == (2.0, 7)
    assert (told.num_active, told.num_pending) == (2, 1)
    assert told.occupancy == Occupancy(4, 6, (memory, memory))
    first.tell(Restarting("it was killed"))
    second.tell(Stats(2.5, Totals(new_tokens=4)))  # while the first loads, which holds nothing
    told = house.told(Stats)[-1]
    assert (told.totals.new_tokens, told.num_active, told.occupancy) == (7, 0, Occupancy())
    first.tell(Stats(3.0, Totals(new_tokens=1), began=2.5))
    assert house.told(Stats)[-1].totals.new_tokens == 8
    first.tell(Restarting("the connection was lost, and it was not"))
    first.tell(Stats(4.0, Totals(new_tokens=3), began=2.5))
    assert house.told(Stats)[-1].totals.new_tokens == 10


def test_events_of_two_threads_come_in_the_order_in_which_they_were_taken():
    order, inside, go_on = [], threading.Event(), threading.Event()

    def deliver(events):
        if not order:
            inside.set()
            assert go_on.wait(20)
        order.extend(events)

    box = replicas.Outbox(deliver)
    box.put([1])
    slow = threading.Thread(target=box.deliver)
    slow.start()
    assert inside.wait(20)
    box.put([2])
    box.deliver()  # by the other thread, which has the turn
    go_on.set()
    slow.join(20)
    assert order == [1, 2]


@pytest.mark.parametrize(
    ("config", "param"),
    [
        ({"replicas": 2, "gpus": (0, 1, 2), "device": "cuda"}, "replicas"),
        ({"replicas": 2, "link": "thread"}, "replicas"),
        ({"replicas": 0}, "replicas"),
        ({"silence_timeout": 0.0}, "silence_timeout"),
    ],
)
def test_what_can_not_be_is_refused(config, param):
    with pytest.raises(ModelError) as error:
        ModelConfig("", "model", **config)
    assert error.value.param == param


def test_gpus_are_shared_out_in_equal_runs(monkeypatch):
    monkeypatch.setattr(gpus, "visible", lambda: [None] * 4)
    config = functools.partial(ModelConfig, "", "model", device="cuda")
    assert gpus.shares(config()) == [()]
    assert gpus.shares(config(replicas=2)) == [(0, 1), (2, 3)]
    assert gpus.shares(config(replicas=2, gpus=(3, 1))) == [(3,), (1,)]
    assert gpus.shares(ModelConfig("", "model", device="cpu", replicas=2)) == [(), ()]
    with pytest.raises(ModelError, match="4 GPUs can't be shared out to 3 replicas"):
        gpus.shares(config(replicas=3))


# Over real processes


@pytest.fixture
def link():
    return "replicas"


def children(model):
    return [replica.link.pid for replica in model._link._replicas]


def drawn_out(job):
    """No text before a token is wanted beyond ten; then a token every few milliseconds."""
    return ticking(job) if job.max_new_tokens > 10 else count(job)


def take_until_text(stream):
    while not any(isinstance(event, Chunk) for event in stream.take(20)):
        pass


def end_of(stream):
    while not stream.is_finished:
        events = stream.take(20)
        assert events, "no event in 20 s"
    return events[-1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_one_of_two_is_lost_with_what_it_had_told_alone(make_engine, number):
    model = make_engine(
        ScriptedBackend(drawn_out),
        replicas=2,
        max_batch_size=2,
        silence_timeout=1.0,
        hang_exit=60.0,
    )
    with model._changed:
        assert model._changed.wait_for(
            lambda: [one.status for one in model.standing.replicas] == ["ready"] * 2, 20
        )
    streams = [model.submit([job(f"long-{i}", 1000)]) for i in range(4)]
    waiting = [model.submit([job(f"waiting-{i}", 3)]) for i in range(8)]
    for stream in streams:
        take_until_text(stream)
    lost, _ = children(model)
    os.kill(lost, number)
    ends = [end_of(streams[i]) for i in (0, 2)]
    assert all(isinstance(end, Failed) and type(end.error) is BatchFailed for end in ends)
    assert not any(streams[i].is_finished for i in (1, 3))
    streams[1].close()
    for stream in waiting:
        assert isinstance(end_of(stream), Finished)
    assert model.state == "ready"
    streams[3].close()
    if number == signal.SIGSTOP:
        os.kill(lost, signal.SIGCONT)
    with model._changed:
        assert model._changed.wait_for(
            lambda: [one.status for one in model.standing.replicas] == ["ready"] * 2, 60
        )


def test_jobs_outlive_the_only_process(make_engine):
    model = make_engine(ScriptedBackend(drawn_out), max_batch_size=1)
    first = model.submit([job("long", 1000)])
    take_until_text(first)
    waiting = [model.submit([job(f"waiting-{i}", 3)]) for i in range(8)]
    [lost] = children(model)
    os.kill(lost, signal.SIGKILL)
    assert isinstance(end_of(first), Failed)
    later = model.submit([job("later", 3)])  # taken, while it is loaded anew
    for stream in [*waiting, later]:
        assert isinstance(end_of(stream), Finished)
    assert children(model) != [lost] and model.standing.num_restarts == 1


def test_none_takes_jobs_while_all_hang(make_engine):
    model = make_engine(ScriptedBackend(drawn_out), silence_timeout=1.0, hang_exit=60.0)
    [child] = children(model)
    waiting = model.submit([job("waiting", 3)])
    assert isinstance(end_of(waiting), Finished)
    os.kill(child, signal.SIGSTOP)
    try:
        with model._changed:
            assert model._changed.wait_for(lambda: model.state == "hanging", 20)
        with pytest.raises(engine.Stalled):
            model.submit([job("new", 3)])
    finally:
        os.kill(child, signal.SIGCONT)
    with model._changed:
        assert model._changed.wait_for(lambda: model.state == "ready", 20)
    assert isinstance(end_of(model.submit([job("after", 3)])), Finished)
