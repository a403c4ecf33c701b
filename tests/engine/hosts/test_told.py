"""What a shared engine tells its servers, over a link whose every event a test decides."""

import threading
import time

import pytest

from switchyard.engine import messages
from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import BatchFailed
from switchyard.engine.links.hosts import front_end
from switchyard.engine.links.hosts.host import DRAINS, Host
from switchyard.engine.links.wire import Wire
from switchyard.engine.stats import Stats
from tests.conftest import wait_for
from tests.engine.hosts.house import FINGERPRINT, connected, received
from tests.scripted import finished, job

INFO = messages.ModelInfo(2048, 4096, 256, 64, "scripted")
LOADED = messages.Loaded(INFO)


class ToldLink:
    """The engine thread is the test. `sent`: the commands of the host."""

    def __init__(self, deliver):
        self.deliver = deliver
        self.sent = []
        self.changed = threading.Condition()
        self.last = []  # told before the end
        self.has_ended = True

    def start(self):
        pass

    def send(self, command):
        with self.changed:
            self.sent.append(command)
            self.changed.notify_all()
        if isinstance(command, messages.Stop):
            self.deliver([*self.last, messages.Stopped(None)])

    def join(self, timeout=None):
        return self.has_ended

    def wait_for(self, command):
        with self.changed:
            assert self.changed.wait_for(lambda: command in self.sent, 20), self.sent


class Shared:
    def __init__(self, model_path, tmp_path):
        self.at = f"unix:{tmp_path}/engine.sock"
        config = ModelConfig(model_path, "scripted", silence_timeout=120.0)
        self.host = Host(config, self._make, self.at, b"", FINGERPRINT)
        self.host.start()

    def _make(self, deliver):
        self.link = ToldLink(deliver)
        return self.link

    key = b""
    connected = connected  # the wire of a server

    def has_taken(self, wire, serial):
        """All that `wire` has sent so far: it asks as the `serial`th question of all."""
        wire.send(messages.ListPending(1000 + serial))
        self.link.wait_for(messages.ListPending(serial))
        self.link.deliver([messages.PendingList(serial, ())])
        return told_until(wire, messages.PendingList)

    def submit(self, wire, serial, name="a"):
        wire.send(messages.Submit(job(name), 0.0))
        self.has_taken(wire, serial)

    def end_cancelled(self, wire):
        """The job a. Returns what the server is told."""
        self.link.deliver([finished(job("a"), 0, "cancelled"), Stats(1.0)])
        return told_until(wire, Stats)


@pytest.fixture
def shared(model_path, tmp_path):
    made = []

    def make(*events):
        one = Shared(model_path, tmp_path)
        made.append(one)
        if events:
            one.link.deliver(list(events))
            with one.connected() as wire:
                told_until(wire, messages.Loaded)  # jobs that come before are refused
        return one

    yield make
    for one in made:
        assert one.host.close(timeout=20)


@pytest.fixture
def one(shared):
    return shared(LOADED)


def told_until(wire, kind):
    """All events up to the first of that kind."""
    events = []
    while not any(isinstance(event, kind) for event in events):
        events += received(wire)
    return events


def rest_of(wire):
    """All events up to the end, which comes long before silence would bring it."""
    events, deadline = [], time.monotonic() + 20
    with pytest.raises(EOFError):
        while time.monotonic() < deadline:
            events += [event for batch in wire.receive(1.0) or () for event in batch]
    return events


def replica(status, reason="", **more):
    fields = {"num_jobs": 0, "gpus": (), "at": "", "pid": 1, "num_restarts": 0, "num_hangs": 0}
    return messages.ReplicaState(status=status, reason=reason, **(fields | more))


ALL_HANG = messages.ReplicaStates((replica("hanging", "stuck"), replica("hanging", "stuck")))
ONE_IS_READY = messages.ReplicaStates((replica("ready"), replica("hanging", "stuck")))


@pytest.mark.parametrize(
    ("before", "greeting"),
    [
        ([messages.LoadProgress(0.5)], [messages.LoadProgress(0.5)]),
        ([LOADED], [LOADED]),
        ([LOADED, messages.Recovering("broken")], [LOADED, messages.Recovering("broken")]),
        ([LOADED, messages.Recovering("broken"), messages.Recovered()], [LOADED]),
        ([LOADED, messages.Hanging("stuck")], [LOADED, messages.Hanging("stuck")]),
        ([LOADED, messages.Hanging("stuck"), messages.Recovered()], [LOADED]),
        ([LOADED, ALL_HANG], [LOADED, messages.Hanging("stuck")]),
        ([LOADED, ALL_HANG, ONE_IS_READY], [LOADED]),
    ],
)
def test_a_server_that_comes_later_is_told_how_things_are(shared, before, greeting):
    one = shared()
    with one.connected() as first:
        one.has_taken(first, 1)  # so the host tells it: a greeting before the load has no numbers
        one.link.deliver([*before, Stats(1.0, num_active=5)])
        told_until(first, Stats)  # the host has come by all
        with one.connected() as late:
            *told, _ = one.has_taken(late, 2)
    assert [event for event in told if not isinstance(event, Stats)] == greeting


def test_a_server_that_comes_later_has_the_numbers_so_far(one):
    with one.connected() as first:
        told_until(first, messages.Loaded)
        one.link.deliver([Stats(1.0, num_active=5)])
        *_, early = told_until(first, Stats)
        with one.connected() as late:
            assert told_until(late, Stats) == [LOADED, early]
    assert early.num_active == 5 and early.began > 0


def test_a_server_that_comes_while_the_engine_drains_is_told_so(one):
    with one.connected() as first:
        one.submit(first, 1)
        closing = threading.Thread(target=one.host.close, args=(20.0, 20.0))
        closing.start()
        assert told_until(first, messages.Recovering)[-1] == messages.Recovering(DRAINS)
        with one.connected() as late:
            assert told_until(late, messages.Recovering) == [LOADED, messages.Recovering(DRAINS)]
            # It drains all the same:
            one.link.deliver([messages.Recovered(), ALL_HANG, ONE_IS_READY, Stats(1.0)])
            assert [type(event) for event in told_until(late, Stats)] == [Stats]
            assert messages.Stop() not in one.link.sent  # not before its job has ended
            one.link.deliver([finished(job("a"), 0)])
            assert rest_of(late) == [messages.Stopped(None)]
        assert rest_of(first)[-2:] == [finished(job("a"), 0), messages.Stopped(None)]
    closing.join(20)


def test_trouble_of_all_replicas_is_told_once_and_its_end_too(one):
    """One of several that hangs is the host's own affair."""
    with one.connected() as wire:
        told_until(wire, messages.Loaded)
        one.link.deliver([ONE_IS_READY, ALL_HANG, ALL_HANG, ONE_IS_READY, ONE_IS_READY, Stats(1.0)])
        *told, _ = told_until(wire, Stats)
    assert told == [messages.Recovering("stuck"), messages.Recovered()]


def test_what_was_told_before_a_hang_comes_before_it(one):
    """A text behind it would be of a job that its server has put back."""
    with one.connected() as ann, one.connected() as bob:
        for serial, (name, wire) in enumerate((("ann", ann), ("bob", bob)), 1):
            one.submit(wire, serial, name)
        texts = [messages.Chunk(name, "x", (1,)) for name in ("ann", "bob", "ann")]
        one.link.deliver(
            [*texts, messages.Hanging("stuck"), messages.Chunk("ann", "y", (1,)), Stats(1.0)]
        )
        *told, _ = told_until(ann, Stats)
        assert told == [texts[0], texts[2], messages.Hanging("stuck")]
        *told, _ = told_until(bob, Stats)
        assert told == [texts[1], messages.Hanging("stuck")]
    assert one.link.sent.count(messages.Abandon()) == 1 and one.host.num_jobs == 0


def test_a_job_that_waits_for_its_lost_one_can_be_cancelled(one):
    with one.connected() as old, one.connected() as new:
        one.submit(old, 1)
        new.send(messages.Submit(job("a"), 0.0))
        new.send(messages.Cancel("a"))
        told = one.has_taken(new, 2)
        assert messages.Finished("a", "cancelled", 3, 0, 0) in told
        one.end_cancelled(new)
    assert [type(command) for command in one.link.sent].count(messages.Submit) == 1


def test_a_job_that_waits_for_its_lost_one_goes_with_its_server(one):
    with one.connected() as old:
        one.submit(old, 1)
        with one.connected() as new:
            one.submit(new, 2)
            assert one.link.sent.count(messages.Cancel("a")) == 1
        wait_for(lambda: not one.host._again, 20)  # nothing tells that it has left
        one.end_cancelled(old)
    assert [type(command) for command in one.link.sent].count(messages.Submit) == 1


def test_a_job_that_waits_for_its_lost_one_outlives_other_servers(one):
    with one.connected() as old, one.connected() as new:
        for serial, wire in enumerate((old, new), 1):
            one.submit(wire, serial)
        with one.connected() as other:
            one.submit(other, 3, "b")
        one.link.wait_for(messages.Cancel("b"))  # it has left
        one.end_cancelled(new)
    jobs = [sent.job.identifier for sent in one.link.sent if isinstance(sent, messages.Submit)]
    assert jobs == ["a", "b", "a"]


def test_a_job_is_as_old_as_its_server_says(one):
    """The clock of another machine may be anywhere."""
    with one.connected() as wire:
        wire.send(messages.Submit(job("a"), 100.0))
        wire.send(messages.ListJobs(7))
        one.link.wait_for(messages.ListPending(1))
        one.link.deliver([messages.Started("a"), messages.PendingList(1, ())])
        *_, answer = told_until(wire, messages.JobList)
    [listed] = answer.jobs
    assert answer.serial == 7 and listed.state == "prefill" and 100 <= listed.age < 1000
    [submit] = [command for command in one.link.sent if isinstance(command, messages.Submit)]
    assert 100 <= time.monotonic() - submit.time < 1000


def test_an_engine_that_fails_tells_all_why_and_ends(one):
    error = BatchFailed("the device is gone")
    with one.connected() as ann, one.connected() as bob:
        one.submit(ann, 1)
        one.link.deliver([messages.Stopped(error)])
        for wire in (ann, bob):
            last = rest_of(wire)[-1]
            assert type(last) is messages.Stopped and str(last.error) == str(error)
    assert one.host.wait(20) and one.host.is_loaded and one.host.num_jobs == 0
    with one.connected() as late:  # the door is open until it is closed
        [told] = rest_of(late)
        assert type(told) is messages.Stopped and str(told.error) == str(error)


def test_what_a_server_sends_that_cannot_be_read_ends_it_alone(one, caplog):
    with one.connected() as good, one.connected() as bad:
        told_until(bad, messages.Loaded)
        one.submit(bad, 1)
        bad._socket.sendall(b"\0\0\0\4none")
        assert rest_of(bad) == []
        one.link.wait_for(messages.Cancel("a"))
        assert one.end_cancelled(good)[0] == LOADED
    assert "a message from server 1 can't be read" in caplog.text


def test_a_job_that_an_end_cuts_off_has_no_end_of_its_own(one):
    """Its server moves it to another engine, or keeps it."""
    with one.connected() as wire:
        one.submit(wire, 1)
        one.link.last = [finished(job("a"), 0, "cancelled")]
        assert one.host.close(timeout=20)
        assert rest_of(wire) == [messages.Recovering(DRAINS), messages.Stopped(None)]


def test_an_engine_whose_thread_goes_on_is_not_closed(one):
    one.link.has_ended = False
    assert not one.host.close(timeout=20)
    one.link.has_ended = True


def test_a_server_that_now_and_then_speaks_is_not_silent(ends, monkeypatch):
    """Its pauses together are longer than the limit."""
    commands = [messages.ListPending(serial) for serial in range(1, 20)]
    heard = [batch for command in commands for batch in (None, [command])]

    class Spoken(Wire):
        def receive(self, timeout=None):
            if not heard:
                raise EOFError
            return heard.pop(0)

    monkeypatch.setattr(front_end, "Wire", Spoken)
    taken, has_started = [], threading.Event()
    one = front_end.FrontEnd(
        ends[0],
        seals=None,
        pid=1,
        silence_timeout=5.0,
        take=lambda _, command: taken.append(command),
        leave=lambda _: has_started.wait(20),
    )
    one.start()
    has_started.set()
    one.join(20)
    assert taken == commands


def test_each_server_has_the_whole_list_as_the_answer_to_its_own_question(one):
    with one.connected() as first, one.connected() as second:
        more = {"request_id": "req", "owner": "key", "client": "address", "priority": 0}
        first.send(messages.Submit(job("runs", 300, prompt=(1,) * 250, **more), 100.0))
        one.has_taken(first, 1)
        second.send(messages.Submit(job("waits"), 50.0))
        one.has_taken(second, 2)
        one.link.deliver([messages.Started("runs"), messages.Chunk("runs", "xyz", (1, 2, 3))])
        for serial, wire in ((3, first), (4, second)):
            wire.send(messages.ListJobs(70 + serial))
            one.link.wait_for(messages.ListPending(serial))
        one.link.deliver(
            [messages.PendingList(4, ("other", "waits")), messages.PendingList(3, ("waits",))]
        )
        for serial, wire, place in ((3, first, 1), (4, second, 2)):
            answer = told_until(wire, messages.JobList)[-1]
            runs, waits = answer.jobs
            assert answer.serial == 70 + serial
            assert waits == messages.JobState(
                "waits", "pending", place, 3, 0, waits.age, 0, 0, "", "", ""
            )
            told = ("decode", None, 250, 3, runs.age, 1, 0, "req", "key", "address")
            assert runs == messages.JobState("runs", *told)
            assert 100 < runs.age < 10_000 and runs.age > waits.age > 50
