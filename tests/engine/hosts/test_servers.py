"""How a server comes to a shared engine, and what it does when that is away."""

import os
import threading
import time

import pytest

from switchyard import engine
from switchyard.engine import messages
from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import DeviceLost, ModelError
from switchyard.engine.links.hosts import address, handshake, knock
from switchyard.engine.links.hosts.introduction import Hello, Welcome
from switchyard.engine.links.hosts.socket_link import SocketLink
from switchyard.engine.links.wire import Wire
from switchyard.engine.memory import residency
from switchyard.engine.messages import Finished, PutBack
from tests.engine.hosts.house import FINGERPRINT, KEY, hello_of, link_of, meeting
from tests.engine.reading import is_served, take_all, wait_for_state, wait_until
from tests.scripted import ScriptedBackend, count, job


def test_a_silent_engine_is_left(house, monkeypatch):
    shared = house(silence_timeout=0.5)
    with address.listen(shared.at) as mute:
        model = shared.connect(is_waited_for=False)
        connection, _ = mute.accept()
        hello, _ = handshake.meet_server(connection, b"", lambda _: Welcome(7))
        assert hello == Hello(os.getpid(), FINGERPRINT)
        with Wire(connection) as wire:
            wire.send([messages.Loaded(ScriptedBackend().open())])
            assert model.wait_until_loaded(20)
            stream = model.submit([job("a")])
            assert isinstance(stream.take(20)[0], PutBack)
    os.unlink(shared.at.removeprefix("unix:"))
    shared.open(ScriptedBackend())
    assert isinstance(take_all(stream)[-1], Finished)


def test_a_server_tells_why_the_engine_has_ended(shared):
    with meeting(shared, is_loaded=True) as (model, wire):
        wire.send([messages.Stopped(DeviceLost("the device is lost"))])
        wait_until(model, lambda: model.error is not None)
        error = model.error
    assert str(error) == f"the engine at {shared.at} has ended: the device is lost"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"key": b"x" * 32}, "the engine has a different key"),
        ({"fingerprint": "fp_2"}, "fingerprint fp_1, but this server's has fp_2"),
    ],
)
def test_a_server_that_may_not_share_it_is_told_and_does_not_start(house, changes, says):
    shared = house(key=KEY)
    shared.open(ScriptedBackend())
    model = shared.connect(is_waited_for=False, **changes)
    assert not model.wait_until_loaded(20)
    assert type(model.error) is ModelError and says in str(model.error)
    assert shared.at in str(model.error)


def test_a_server_waits_for_an_engine_that_is_not_there_yet(shared, caplog):
    model = shared.connect(is_waited_for=False)
    assert not model.wait_until_loaded(0.5) and model.state == "loading"
    shared.open(ScriptedBackend())
    assert model.wait_until_loaded(20)
    assert len([m for m in caplog.messages if "no engine for model scripted" in m]) == 1


def test_a_server_tries_again_where_a_full_door_is_closed_on_it(shared):
    with address.listen(shared.at) as listener:
        model = shared.connect(is_waited_for=False)
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(44)  # all that it says
        listener.settimeout(20)
        again, _ = listener.accept()
        again.close()
        assert model.state == "loading"


def test_an_engine_that_lets_a_server_in_and_says_no_more_is_given_up(at, monkeypatch):
    monkeypatch.setattr(handshake, "TIMEOUT", 0.5)
    ends = []

    def come():
        try:
            knock.knock(at, b"", FINGERPRINT)
        except Exception as error:
            ends.append(type(error))

    thread = threading.Thread(target=come)
    with address.listen(at) as listener:
        thread.start()
        connection, _ = listener.accept()
        with connection:
            connection.sendall(hello_of(handshake.PROTOCOL))
            thread.join(20)
    thread.join(20)
    assert ends == [TimeoutError]


def test_each_loss_of_an_engine_begins_with_short_waits(shared, monkeypatch, caplog):
    told, waits = [], []
    link = SocketLink(shared.config, shared.at, b"", FINGERPRINT, told.extend)
    ends = [*[OSError("away")] * 7, "it was cut off", OSError("away"), ModelError("no weights")]

    def stay_connected():
        if isinstance(end := ends.pop(0), str):
            return end
        raise end

    monkeypatch.setattr(link, "_stay_connected", stay_connected)
    monkeypatch.setattr(link._is_stopping, "wait", waits.append)
    link._run()
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 0.1]
    assert len([m for m in caplog.messages if "no engine for model scripted" in m]) == 2
    restarting, stopped = told
    assert restarting == messages.Restarting("it was cut off")
    assert isinstance(stopped, messages.Stopped) and str(stopped.error) == "no weights"


def test_a_job_is_sent_with_its_age(shared):
    """Not with the time of a clock that another machine has not."""
    with meeting(shared, is_loaded=True) as (model, wire):
        link_of(model).send(messages.Submit(job("a"), time.monotonic() - 7000.0))
        while not (sent := wire.receive_one(20)):
            pass
    assert sent.job.identifier == "a" and 7000 <= sent.time < 7100


def test_a_server_needs_no_memory_for_a_shared_engine(model_path):
    config = ModelConfig(model_path, "m", "cpu", link="socket", at=("unix:/a",))
    assert residency.needed(config) == {}


def test_an_engine_that_hangs_is_told_and_taken_back(house, gate):
    shared = house(hang_timeout=0.3, hang_exit=60.0)
    model = shared.serve(count, gate)
    stream = model.submit([job("a")])
    gate.wait_until_held()
    assert isinstance(stream.take(20)[0], PutBack)
    with pytest.raises(engine.Stalled):
        model.submit([job("b")])
    gate.open()
    assert isinstance(take_all(stream)[-1], Finished)
    assert model.state == "ready"


def test_the_numbers_go_on_where_the_connection_was_lost(house):
    model = house().serve()
    take_all(model.submit([job("a", 3)]))
    link_of(model)._wire.shut()
    take_all(model.submit([job("b", 3)]))
    wait_until(model, lambda: model.standing.stats.totals.new_tokens >= 6)
    assert model.standing.stats.totals.new_tokens == 6


def test_the_process_of_an_engine_is_told_as_long_as_it_is_there(shared):
    with meeting(shared, is_loaded=True) as (model, _):
        assert link_of(model).pid == 7
    wait_for_state(model, "recovering")
    assert link_of(model).pid is None


@pytest.mark.parametrize(
    "last",
    [
        [],
        [[messages.Stopped(engine.Closed("the engine drains"))]],
        [[messages.Loaded(ScriptedBackend().open())], [messages.Stopped(ModelError("no weights"))]],
    ],
    ids=["cut off while it loads", "ended while it loads", "failed after its load"],
)
def test_a_server_goes_on_with_the_next_engine(shared, last):
    with meeting(shared) as (model, wire):
        for events in last:
            wire.send(events)
    os.unlink(shared.at.removeprefix("unix:"))
    shared.open(ScriptedBackend())
    assert model.wait_until_loaded(20)
    assert is_served(model)


def test_a_server_does_not_wait_for_an_engine_that_can_not_load(shared):
    with meeting(shared) as (model, wire):
        wire.send([messages.Stopped(ModelError("no weights"))])
        assert not model.wait_until_loaded(20)
    assert type(model.error) is ModelError and "no weights" in str(model.error)


def test_a_link_that_is_stopped_as_it_connects_ends(model_path, monkeypatch):
    here, there = Wire.pair()

    def connect(*_):
        link.send(messages.Stop())
        return here, 7

    monkeypatch.setattr("switchyard.engine.links.hosts.socket_link.knock", connect)
    config = ModelConfig(model_path, "m", link="socket", at=("unix:/a",), silence_timeout=600.0)
    events = []
    link = SocketLink(config, "unix:/a", b"", FINGERPRINT, events.extend)
    link.start()
    with there:
        assert link.join(20)
    assert events == [messages.Stopped(None)]
