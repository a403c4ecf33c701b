"""A server's engines come and leave, with whatever they have."""

import pytest

from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import ModelError
from switchyard.engine.links.replicas import ReplicaLink
from switchyard.engine.messages import (
    Chunk,
    Demand,
    Failed,
    Finished,
    Loaded,
    PutBack,
    ReplicaStates,
    Restarting,
    Started,
    Stop,
    Stopped,
)
from switchyard.engine.schedule.alarms import ALARMS
from switchyard.engine.stats import Stats, Totals
from tests.engine.replicas.house import INFO, House, ToldLink
from tests.scripted import finished, job


class Home(House):
    """A link whose engines a test names."""

    def __init__(self, *names, **config):
        super().__init__(0, **config)
        self.link = ReplicaLink(
            ModelConfig("", "m", link="socket", at=("file:/a",), **config), (), self._take
        )
        self.at = {}
        self.link.start()
        if names:
            self.name(*names)
            for name in names:
                self.at[name].tell(Loaded(INFO))

    def name(self, *names):
        def make(at):
            def make_link(deliver):
                self.at[at] = ToldLink(deliver, at)
                return self.at[at]

            return make_link

        self.link.follow({at: make(at) for at in names})
        ALARMS.rest()

    @property
    def named(self):
        return {one.at: one.status for one in self.told(ReplicaStates)[-1].states}


def test_one_that_comes_is_loaded_and_gets_what_waits():
    home = Home("a", max_batch_size=1)
    home.submit("1", "2")
    home.name("a", "b")
    assert home.at["b"].is_started and home.named == {"a": "ready", "b": "loading"}
    assert home.at["b"].jobs == []
    home.at["b"].tell(Loaded(INFO))
    assert home.named == {"a": "ready", "b": "ready"}
    assert home.at["a"].jobs == ["1"] and home.at["b"].jobs == ["2"]


def test_one_that_leaves_ends_behind_its_last_job():
    home = Home("a", max_batch_size=4)
    home.submit("1", "2")
    a = home.at["a"]
    a.tell(Started("1"), Chunk("1", "x", (1,)))
    home.name("b")
    assert home.named == {"a": "leaving", "b": "loading"} and Stop() not in a.sent
    home.submit("3")
    home.at["b"].tell(Loaded(INFO))
    assert home.at["b"].jobs == ["3"]
    a.tell(finished(job("1"), 1))
    assert Stop() not in a.sent
    a.tell(Started("2"), finished(job("2"), 1))
    assert a.sent[-1] == Stop()
    a.tell(Stopped(None))
    assert home.named == {"b": "ready"}
    assert not home.told(Failed) and not home.told(Stopped)


@pytest.mark.parametrize("begun", ["waiting", "started", "text"])
def test_the_end_of_a_leaving_connection_costs_what_had_text(begun):
    home = Home("a")
    home.submit("1")
    a = home.at["a"]
    a.tell(*([Started("1")] * (begun != "waiting")), *([Chunk("1", "x", (1,))] * (begun == "text")))
    home.name("b")
    home.at["b"].tell(Loaded(INFO))
    a.tell(Restarting("the connection was lost"))
    assert a.sent[-1] == Stop()
    a.tell(Stopped(None))
    if begun == "text":
        assert [event.identifier for event in home.told(Failed)] == ["1"]
    else:
        assert home.told(PutBack) and home.at["b"].jobs == ["1"] and not home.told(Failed)
    assert home.named == {"b": "ready"}


@pytest.mark.parametrize("begun", ["waiting", "started", "text"])
def test_one_that_is_named_again_stays_with_its_jobs(begun):
    home = Home("a", "b", max_batch_size=2)
    home.submit(*"1234")
    a = home.at["a"]
    mine = a.jobs
    if begun != "waiting":
        a.tell(*map(Started, mine))
    if begun == "text":
        a.tell(*(Chunk(one, "x", (1,)) for one in mine))
    for _ in range(50):
        home.name("b")
        home.name("a", "b")
    assert home.named == {"a": "ready", "b": "ready"} and Stop() not in a.sent
    for link in (a, home.at["b"]):
        link.tell(*(event for one in link.jobs for event in (Started(one), finished(job(one), 1))))
    assert len(home.told(Finished)) == 4 and not home.told(Failed, PutBack)


def test_one_that_is_named_again_while_its_link_ends_is_connected_anew():
    home = Home("a", "b")
    before = home.at["a"]
    home.name("b")
    assert before.sent == [Stop()]
    home.name("a", "b")
    assert home.at["a"] is not before and home.at["a"].is_started
    before.tell(Stopped(None))
    home.at["a"].tell(Loaded(INFO))
    assert home.named == {"b": "ready", "a": "ready"}


def test_one_that_is_back_before_an_older_list_leaves_and_is_taken_again():
    """So the supervisors of a cluster avoid the address of an engine that was lost."""
    home = Home("a", "b", max_batch_size=64)
    home.at["b"].tell(Restarting("it was killed"), Loaded(INFO))
    assert home.named == {"a": "ready", "b": "ready"}
    home.name("a")  # written after the loss, read after the return
    home.submit("1", "2", "3")
    assert home.at["a"].jobs == ["1", "2", "3"]
    home.at["b"].tell(Stopped(None))
    home.name("a", "b")
    home.at["b"].tell(Loaded(INFO))
    home.submit("4")
    assert home.at["b"].jobs == ["4"]


def test_no_engine_at_all_is_a_wait(monkeypatch):
    alarms = []
    home = Home("a")
    home.submit("1")
    monkeypatch.setattr(ALARMS, "set", lambda seconds, call: alarms.append((seconds, call)))
    for seconds in (5, 10, 20, 30, 30):
        home.at["a"].tell(Stopped(ModelError("it has another protocol")))
        due, call = alarms.pop()
        assert due == seconds and home.named == {"a": "stopped"}
        call()
        assert home.at["a"].is_started
    assert not home.told(Stopped, Failed)
    home.at["a"].tell(Loaded(INFO))
    assert home.at["a"].jobs == ["1"]


def test_a_refused_one_that_leaves_is_not_tried_again(monkeypatch):
    home = Home("a", "b")
    alarms = []
    with monkeypatch.context() as patched:
        patched.setattr(ALARMS, "set", lambda seconds, call: alarms.append(call))
        home.at["a"].tell(Stopped(ModelError("it has another key")))
    before = home.at["a"]
    home.name("b")
    assert home.named == {"b": "ready"}
    alarms.pop()()
    assert home.at["a"] is before


@pytest.mark.parametrize("names", [(), ("a",), ("a", "b")])
def test_it_ends_once_all_its_links_have(names, monkeypatch):
    home = Home(*names)
    with monkeypatch.context() as patched:
        patched.setattr(ALARMS, "set", lambda *_: None)
        for name in names[:1]:
            home.at[name].tell(Stopped(ModelError("refused")))
    home.link.send(Stop())
    for name in names[1:]:
        assert not home.told(Stopped)
        home.at[name].tell(Stopped(None))
    assert home.wait_for(Stopped) == Stopped(None)
    home.name("c")
    assert "c" not in home.at


def test_what_waits_is_told_to_all_engines_until_nothing_does():
    home = Home("a", "b", max_batch_size=1)
    home.submit(*"1234")
    for _ in range(2):
        home.link.tell_demand()
    home.at["a"].tell(
        Stats(1.0, num_wanted=7, num_active=1), finished(job(home.at["a"].jobs[0]), 1)
    )
    assert home.told(Stats)[-1].num_wanted == 7
    home.at["b"].tell(finished(job(home.at["b"].jobs[0]), 1))
    for _ in range(3):
        home.link.tell_demand()
    for link in home.at.values():
        told = [one.num_waiting for one in link.sent if isinstance(one, Demand)]
        assert told == [2, 2, 0]


def test_counts_do_not_fall_where_an_engine_leaves_and_are_not_doubled_where_it_comes_back():
    home = Home("a", "b")
    for name, number in (("a", 5), ("b", 7)):
        home.at[name].tell(Stats(1.0, Totals(new_tokens=number), num_active=1, began=1.0))
    home.name("b")
    home.at["a"].tell(Stopped(None))
    home.at["b"].tell(Stats(2.0, Totals(new_tokens=8), began=1.0))
    told = home.told(Stats)[-1]
    assert (told.totals.new_tokens, told.num_active) == (13, 0)
    home.name("a", "b")
    home.at["a"].tell(Loaded(INFO), Stats(3.0, Totals(new_tokens=6), began=1.0))
    assert home.told(Stats)[-1].totals.new_tokens == 14
    home.at["a"].tell(Stats(4.0, Totals(new_tokens=1), began=3.5))  # another process
    assert home.told(Stats)[-1].totals.new_tokens == 15
