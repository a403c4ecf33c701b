"""An engine that several servers share: real sockets, a scripted backend."""

import contextlib
import dataclasses
import errno
import functools
import hashlib
import os
import pathlib
import socket
import threading
import time

import pytest

from switchyard import engine
from switchyard.engine import errors, messages, sampling, stats
from switchyard.engine import job as jobs
from switchyard.engine.config import ModelConfig
from switchyard.engine.engine import Engine
from switchyard.engine.errors import BatchFailed, Full, ModelError
from switchyard.engine.links.hosts import address, door, handshake, key, knock
from switchyard.engine.links.hosts.handshake import Stranger, meet_engine
from switchyard.engine.links.hosts.host import Host
from switchyard.engine.links.hosts.knock import Hello
from switchyard.engine.links.hosts.socket_link import SocketLink
from switchyard.engine.links.replicas import ReplicaLink
from switchyard.engine.links.thread import EngineThread
from switchyard.engine.links.wire import Wire
from switchyard.engine.messages import Chunk, Failed, Finished, ListPending, PutBack, Submit
from tests.engine.reading import take_all
from tests.scripted import Gate, ScriptedBackend, count, finished, job, ticking

KEY = b"k" * 32
FINGERPRINT = "fp_1"


def named(one):
    """Its own name, so often as it asks."""
    yield messages.Started(one.identifier)
    for i in range(one.max_new_tokens):
        yield Chunk(one.identifier, f"{one.identifier} ", (i,))
    yield finished(one, one.max_new_tokens)


def drawn_out(one):
    return ticking(one) if one.max_new_tokens > 10 else count(one)


def take_until_text(stream):
    taken = stream.take(20)
    while not any(isinstance(event, Chunk) for event in taken):
        assert taken, "no event in 20 s"
        taken = stream.take(20)


def wait_until(condition, changed):
    with changed:
        assert changed.wait_for(condition, 20)


class House:
    """A host, and the servers that share it."""

    def __init__(self, model_path, tmp_path, at=None, key=b"", **config):
        self.at = at or f"unix:{tmp_path}/engine.sock"
        self.key = key
        self.config = ModelConfig(model_path, "scripted", **config)
        self.hosts, self.engines = [], []

    def open(self, backend):
        over_thread = functools.partial(EngineThread, self.config, lambda: backend)
        host = Host(self.config, over_thread, self.at, self.key, FINGERPRINT)
        self.hosts.append(host)
        host.start()
        return host

    def connect(self, key=None, fingerprint=FINGERPRINT, is_waited_for=True, **changes):
        config = dataclasses.replace(self.config, link="socket", at=(self.at,), **changes)
        make = functools.partial(SocketLink, config, self.at, key or self.key, fingerprint)
        model = Engine(config, functools.partial(ReplicaLink, config, [((), make)]))
        self.engines.append(model)
        model.start()
        if is_waited_for:
            assert model.wait_until_loaded(20)
        return model

    def close(self):
        for one in self.engines:
            assert one.close(timeout=20)
        for host in self.hosts:
            assert host.close(timeout=20)


@pytest.fixture
def house(model_path, tmp_path):
    with contextlib.ExitStack() as stack:

        def make(**config):
            one = House(model_path, tmp_path, **config)
            stack.callback(one.close)
            return one

        yield make


def link_of(model):
    [replica] = model._link._replicas
    return replica.link


def test_each_front_end_gets_the_events_of_its_own_jobs(house):
    shared = house(max_batch_size=64)
    shared.open(ScriptedBackend(named))
    models = [shared.connect() for _ in range(3)]
    streams = [
        (f"{i}-{k}", model.submit([job(f"{i}-{k}", 20)]))
        for k in range(5)
        for i, model in enumerate(models)
    ]
    for name, stream in streams:
        events = take_all(stream)
        text = "".join(event.text for event in events if isinstance(event, Chunk))
        assert text == f"{name} " * 20
    assert {link_of(model).pid for model in models} == {os.getpid()}


def test_a_front_end_that_ends_takes_its_jobs_along_and_no_others(house):
    backend = ScriptedBackend(ticking)
    shared = house(max_batch_size=2)
    host = shared.open(backend)
    bob = shared.connect()
    with connected(shared) as ann:
        for name in ("ann-1", "ann-2", "ann-3"):
            ann.send(Submit(job(name, 1000), 0.0))
        told(ann, Chunk)
        other = bob.submit([job("bob", 1000)])
        assert len(bob.jobs(20)) == 4
    take_until_text(other)
    wait_until(lambda: host.num_jobs == 1, host._changed)
    assert list(backend.active) == ["bob"]


def test_all_front_ends_together_have_the_limit_of_one(house):
    shared = house(max_batch_size=1, max_pending=2)
    shared.open(ScriptedBackend(ticking))
    ann, bob = shared.connect(), shared.connect()
    held = [ann.submit([job("ann", 1000)])]
    take_until_text(held[0])
    held += [bob.submit([job(f"bob-{i}")]) for i in range(2)]
    assert len(bob.jobs(20)) == 3  # the host has come by them
    [end] = take_all(ann.submit([job("one more")]))
    assert type(end.error) is Full and "3 jobs are active or wait, of 3" in str(end.error)
    assert end.error.retry_after >= 1
    for stream in held:
        stream.close()


def test_each_lists_the_jobs_of_all_with_their_places_and_may_end_them(house):
    shared = house(max_batch_size=1)
    shared.open(ScriptedBackend(drawn_out))
    ann, bob = shared.connect(), shared.connect()
    first = ann.submit([job("first", 1000, owner="ann")])
    take_until_text(first)
    second, third = bob.submit([job("second")]), ann.submit([job("third")])
    told = {one.identifier: one for one in bob.jobs(20)}
    assert told["first"].state == "decode" and told["first"].new_tokens > 0
    assert (told["first"].owner, told["first"].num_pages) == ("ann", 4)
    places = {name: told[name].place for name in ("second", "third")}
    assert sorted(places.values()) == [1, 2]
    assert [one.identifier for one in bob.jobs(timeout=0)] == ["second"]
    assert bob.queued("second", 0.0, 20).place == places["second"]
    assert ann.queued("third", 0.0, 20).place == places["third"]
    assert bob.cancel("third") and take_all(third)[-1].finish_reason == "cancelled"
    assert bob.cancel("first") and take_all(first)[-1].finish_reason == "cancelled"
    assert isinstance(take_all(second)[-1], Finished)
    assert bob.cancel("nobody's")  # it can't know


def test_what_a_front_end_may_not_say_changes_nothing(house):
    shared = house()
    shared.open(ScriptedBackend(ticking))
    ann, bob = shared.connect(), shared.connect()
    stream = ann.submit([job("a", 1000)])
    take_until_text(stream)
    link_of(bob)._commands.put(messages.Stop())
    link_of(bob).send(messages.Abandon())
    assert bob.jobs(20)  # the engine has come by them
    take_until_text(stream)


def lost_and_back(shared, lose):
    """A job with text, one that waits, and one that comes while there is no engine."""
    model = shared.connect(max_batch_size=1)
    told = model.submit([job("told", 1000)])
    take_until_text(told)
    waits = model.submit([job("waits")])
    lose()
    end = take_all(told)[-1]
    assert type(end.error) is BatchFailed
    with model._changed:
        assert model._changed.wait_for(lambda: model.state == "recovering", 20)
    later = model.submit([job("later")])
    return waits, later, end.error, model


def test_what_has_no_text_outlives_the_engine_process(house):
    shared = house(max_batch_size=1)
    host = shared.open(ScriptedBackend(drawn_out))
    waits, later, error, model = lost_and_back(shared, lambda: host.close(timeout=20))
    assert str(error) == f"the engine at {shared.at} has ended"
    shared.open(ScriptedBackend(drawn_out))
    events = take_all(waits)
    assert isinstance(events[0], PutBack) and isinstance(events[-1], Finished)
    assert isinstance(take_all(later)[-1], Finished)
    assert model.state == "ready"


def test_an_engine_that_drains_ends_what_it_has_and_gets_nothing_new(house):
    gate = Gate()
    shared = house(max_batch_size=1)
    host = shared.open(ScriptedBackend(count, gate))
    model = shared.connect()
    first, second = model.submit([job("first")]), model.submit([job("second")])
    gate.wait_until_held()
    closing = threading.Thread(target=host.close, args=(20.0, 20.0))
    closing.start()
    with model._changed:
        assert model._changed.wait_for(lambda: model.state == "recovering", 20)
    assert "takes no more jobs" in str(model.error)
    third = model.submit([job("third")])
    gate.open()
    for stream in (first, second):
        assert isinstance(take_all(stream)[-1], Finished)
    closing.join(20)
    shared.open(ScriptedBackend())
    assert isinstance(take_all(third)[-1], Finished)


def test_a_job_that_comes_back_follows_the_one_that_was_lost(house):
    """Its connection was lost, and the host knows of the new one first."""
    gate = Gate()
    backend = ScriptedBackend(named, gate)
    shared = house()
    host = shared.open(backend)
    with connected(shared) as old, connected(shared) as new:
        old.send(Submit(job("a", 2), 0.0))
        gate.wait_until_held()
        new.send(Submit(job("a", 2), 0.0))
        new.send(ListPending(1))  # behind it
        told(new, messages.PendingList, gate)
        gate.open()
        assert told(new, Finished) == [finished(job("a", 2), 2)]
        assert told(old, Finished)[0].finish_reason == "cancelled"
        assert not told_before(new, Failed)
    assert host.num_jobs == 0 and len(backend.enqueued) == 2


@contextlib.contextmanager
def connected(shared, key=None, **options):
    """The wire of a front end, by hand."""
    connection = address.connect(shared.at, 5.0)
    for name, value in options.items():
        connection.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    with Wire(connection) as wire:
        meet_engine(connection, key or shared.key)
        wire.send(Hello(1, FINGERPRINT))
        assert wire.receive_one().refusal == ""
        wire.told = []
        yield wire


def told(wire, kind, gate=None):
    """Events of a kind, the first that come."""
    while not (found := told_before(wire, kind)):
        if gate is not None:
            gate.step()
        messages_ = wire.receive(20)
        assert messages_ is not None, "silent"
        wire.told += [event for events in messages_ for event in events]
    return found


def told_before(wire, kind):
    return [event for event in wire.told if isinstance(event, kind)]


def test_a_front_end_that_reads_nothing_holds_up_nobody_and_is_ended(house):
    def much(one):
        yield messages.Started(one.identifier)
        for i in range(200):  # MB: more than a socket holds, less than a machine
            yield Chunk(one.identifier, str(i % 10) * 1_000_000, (0,))
        yield from ticking(one)

    backend = ScriptedBackend(lambda one: much(one) if one.identifier == "much" else count(one))
    shared = house(silence_timeout=0.5)
    host = shared.open(backend)
    model = shared.connect()
    with connected(shared) as deaf:
        deaf.send(Submit(job("much", 1000), 0.0))
        assert isinstance(take_all(model.submit([job("a", 50)]))[-1], Finished)
        deadline = time.monotonic() + 20
        while host.num_jobs and time.monotonic() < deadline:  # it lives, and reads nothing
            with contextlib.suppress(OSError):
                deaf.send([])
            time.sleep(0.05)
        assert not host.num_jobs
    assert "much" not in backend.active


def test_a_silent_front_end_loses_its_jobs(house):
    """It reads, so that its silence alone tells."""
    backend = ScriptedBackend(ticking)
    shared = house(silence_timeout=0.5)
    host = shared.open(backend)
    with connected(shared) as wire:
        wire.send(Submit(job("a", 1000), 0.0))
        deadline = time.monotonic() + 20
        with pytest.raises(EOFError):
            while time.monotonic() < deadline:
                wire.receive(1.0)
        wait_until(lambda: not host.num_jobs, host._changed)
    assert "a" not in backend.active


def test_a_silent_engine_is_left(house, monkeypatch):
    shared = house(silence_timeout=0.5)
    with address.listen(shared.at) as mute:
        model = shared.connect(is_waited_for=False)
        connection, _ = mute.accept()
        handshake.meet_server(connection, b"")
        with Wire(connection) as wire:
            assert wire.receive_one() == Hello(os.getpid(), FINGERPRINT)
            wire.send(knock.Welcome(7))
            wire.send([messages.Loaded(ScriptedBackend().open())])
            assert model.wait_until_loaded(20)
            stream = model.submit([job("a")])
            assert isinstance(stream.take(20)[0], PutBack)
    os.unlink(shared.at.removeprefix("unix:"))
    shared.open(ScriptedBackend())
    assert isinstance(take_all(stream)[-1], Finished)


# Strangers


@pytest.mark.parametrize("at", ["unix", "tcp"])
@pytest.mark.parametrize("says", ["nothing", "garbage", "protocol", "key", "fingerprint"])
def test_strangers_are_refused_and_others_go_on(house, tmp_path, monkeypatch, at, says):
    monkeypatch.setattr(handshake, "TIMEOUT", 0.3)
    where = f"unix:{tmp_path}/e.sock" if at == "unix" else f"127.0.0.1:{free_port()}"
    shared = house(at=where, key=KEY)
    shared.open(ScriptedBackend(ticking))
    stream = shared.connect().submit([job("a", 1000)])
    with address.connect(where, 5.0) as stranger:
        if says == "garbage":
            stranger.sendall(os.urandom(1000))
        elif says == "protocol":
            stranger.sendall(hello_of(handshake.PROTOCOL + 1))
        elif says == "key":
            with pytest.raises(Stranger, match="another key"):
                meet_engine(stranger, b"x" * 32)
        elif says == "fingerprint":
            meet_engine(stranger, KEY)
            Wire(stranger).send(Hello(1, "another"))
        take_until_text(stream)
        stranger.settimeout(20)
        with contextlib.suppress(ConnectionResetError):  # what it sent was not read
            while stranger.recv(1000):
                pass
    take_until_text(stream)


def hello_of(protocol):
    return handshake._HELLO.pack(b"switchyard", protocol, os.urandom(32))


def test_a_server_says_what_an_engine_of_another_version_speaks():
    here, there = socket.socketpair()
    with here, there:
        there.sendall(hello_of(handshake.PROTOCOL + 1))
        with pytest.raises(Stranger, match="protocol 3, and this one 2: server and engine"):
            meet_engine(here, KEY)


def test_no_pickle_of_a_stranger_is_read(house, monkeypatch):
    shared = house(key=KEY)
    shared.open(ScriptedBackend())
    read = []
    monkeypatch.setattr(door, "Wire", lambda *_: read.append(1))
    with address.connect(shared.at, 5.0) as stranger, pytest.raises(Stranger):
        meet_engine(stranger, b"")
    assert not read


def test_a_server_gives_its_proof_to_none_but_an_engine_with_the_key(house):
    """One that echoes what it is sent has the same proof, by another role."""
    here, there = socket.socketpair()
    with here, there:

        def echo():
            for size in (44, 32):
                there.sendall(there.recv(size))

        thread = threading.Thread(target=echo)
        thread.start()
        with pytest.raises(Stranger, match="another key"):
            meet_engine(here, KEY)
        thread.join(20)


def test_mute_strangers_take_so_many_threads_and_no_more(house, monkeypatch):
    monkeypatch.setattr(door, "MAX_STRANGERS", 2)
    shared = house()
    shared.open(ScriptedBackend())
    with contextlib.ExitStack() as stack:
        mute = [stack.enter_context(address.connect(shared.at, 5.0)) for _ in range(2)]
        for one in mute:
            assert one.recv(44)  # it has a thread
        third = stack.enter_context(address.connect(shared.at, 5.0))
        third.settimeout(20)
        assert third.recv(44) == b""


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"key": b"x" * 32}, "the engine has another key"),
        ({"fingerprint": "fp_2"}, "fingerprint fp_1, and this server one of fp_2"),
    ],
)
def test_a_server_that_may_not_share_it_is_told_and_does_not_start(house, changes, says):
    shared = house(key=KEY)
    shared.open(ScriptedBackend())
    model = shared.connect(is_waited_for=False, **changes)
    assert not model.wait_until_loaded(20)
    assert type(model.error) is ModelError and says in str(model.error)
    assert shared.at in str(model.error)


def test_a_server_waits_for_an_engine_that_is_not_there_yet(house, caplog):
    shared = house()
    model = shared.connect(is_waited_for=False)
    assert not model.wait_until_loaded(0.5) and model.state == "loading"
    shared.open(ScriptedBackend())
    assert model.wait_until_loaded(20)
    assert len([m for m in caplog.messages if "no engine for model scripted" in m]) == 1


def test_a_look_at_an_engine_is_no_server_there(house, caplog):
    caplog.set_level("INFO")
    shared = house()
    host = shared.open(ScriptedBackend())
    wire, pid = knock.knock(shared.at, b"", FINGERPRINT, is_look=True)
    with wire, pytest.raises(EOFError):  # nothing comes but the end
        wire.receive(20)
    assert pid == os.getpid() and not host._front_ends
    assert "shares the engine" not in caplog.text


def test_a_server_can_be_closed_while_there_is_no_engine(house):
    shared = house()
    model = shared.connect(is_waited_for=False)
    assert model.close(timeout=20)


def test_an_engine_that_hangs_is_told_and_taken_back(house):
    gate = Gate()
    shared = house(hang_timeout=0.3, hang_exit=60.0)
    shared.open(ScriptedBackend(count, gate))
    model = shared.connect()
    stream = model.submit([job("a")])
    gate.wait_until_held()
    assert isinstance(stream.take(20)[0], PutBack)
    with pytest.raises(engine.Stalled):
        model.submit([job("b")])
    gate.open()
    assert isinstance(take_all(stream)[-1], Finished)
    assert model.state == "ready"


def test_the_numbers_go_on_where_the_connection_was_lost(house):
    shared = house()
    shared.open(ScriptedBackend())
    model = shared.connect()
    take_all(model.submit([job("a", 3)]))
    link_of(model)._wire.shut()
    take_all(model.submit([job("b", 3)]))
    with model._changed:
        assert model._changed.wait_for(lambda: model.standing.stats.totals.new_tokens >= 6, 20)
    assert model.standing.stats.totals.new_tokens == 6


# Addresses and keys


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize(
    ("at", "says"),
    [
        ("unix:relative", "an absolute path"),
        ("/run/engine.sock", "must be unix:PATH or HOST:PORT"),
        ("127.0.0.1", "must be unix:PATH or HOST:PORT"),
        ("127.0.0.1:0", "must be unix:PATH or HOST:PORT"),
        ("127.0.0.1:65536", "must be unix:PATH or HOST:PORT"),
        ("0.0.0.0:7000", "open to all networks"),
        ("[::]:7000", "open to all networks"),
        ("unix:/nowhere/engine.sock", "can't listen"),
        ("no.such.host.invalid:7000", "can't listen"),
    ],
)
def test_what_is_no_place_for_an_engine_is_refused(at, says):
    with pytest.raises(ModelError, match=says) as caught:
        address.listen(at)
    assert caught.value.param in ("at", None)


def test_the_socket_of_one_that_was_killed_is_taken_over_and_that_of_another_is_not(tmp_path):
    at = f"unix:{tmp_path}/engine.sock"
    path = pathlib.Path(tmp_path, "engine.sock")
    first = address.listen(at)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ModelError, match="in use"):
        address.listen(at)
    first.close()
    second = address.listen(at)
    address.release(second)
    assert not path.exists()
    path.write_text("a file of somebody's")
    with pytest.raises(ModelError, match="in use"):
        address.listen(at)
    assert path.read_text() == "a file of somebody's"


def test_a_key_is_long_and_for_its_owner(tmp_path):
    path = tmp_path / "engine.key"
    with pytest.raises(ModelError, match="No such file"):
        key.read_key(str(path))
    path.write_bytes(KEY + b"\n")
    path.chmod(0o604)
    with pytest.raises(ModelError, match="open to others"):
        key.read_key(str(path))
    path.chmod(0o640)
    assert key.read_key(str(path)) == KEY and key.read_key(None) == b""
    path.write_bytes(b"short")
    with pytest.raises(ModelError, match="has 5 bytes, and must have 32"):
        key.read_key(str(path))


def test_another_shape_of_what_crosses_is_another_protocol():
    """A server and an engine of two versions would misread each other: if this fails, raise
    `PROTOCOL`, and put what the test says into DIGEST.
    """
    found = [
        f"{module.__name__}.{name}({[(f.name, str(f.type)) for f in dataclasses.fields(one)]})"
        for module in (messages, jobs, sampling, stats, knock)
        for name, one in sorted(vars(module).items())
        if dataclasses.is_dataclass(one) and one.__module__ == module.__name__
    ]
    found += sorted(name for name, one in vars(errors).items() if isinstance(one, type))
    digest = hashlib.sha256(repr(sorted(found)).encode()).hexdigest()[:12]
    assert (handshake.PROTOCOL, digest) == (2, DIGEST)


DIGEST = "fd3c1be09d64"


def test_strangers_that_have_been_refused_leave_room_for_others(house, monkeypatch):
    monkeypatch.setattr(door, "MAX_STRANGERS", 2)
    shared = house(key=KEY)
    shared.open(ScriptedBackend())
    for refused in (b"", b"x" * 32, b"another", b""):
        with address.connect(shared.at, 5.0) as stranger, contextlib.suppress(Stranger, OSError):
            meet_engine(stranger, refused)
        with address.connect(shared.at, 5.0) as stranger, contextlib.suppress(Stranger, OSError):
            meet_engine(stranger, KEY)
            wire = Wire(stranger)
            wire.send(Hello(1, "another"))
            wire.receive_one(20)
    assert isinstance(take_all(shared.connect().submit([job("a")]))[-1], Finished)


@contextlib.contextmanager
def meeting(shared):
    """A server's model, and the wire of an engine that has let it in and goes by hand."""
    with address.listen(shared.at) as first:
        model = shared.connect(is_waited_for=False)
        connection, _ = first.accept()
        handshake.meet_server(connection, b"")
        with Wire(connection) as wire:
            wire.receive_one()
            wire.send(knock.Welcome(7))
            yield model, wire


@pytest.mark.parametrize(
    "last",
    [
        [],
        [[messages.Stopped(engine.Closed("the engine drains"))]],
        [[messages.Loaded(ScriptedBackend().open())], [messages.Stopped(ModelError("no weights"))]],
    ],
    ids=["cut off while it loads", "ended while it loads", "failed after its load"],
)
def test_a_server_goes_on_with_the_next_engine(house, last):
    shared = house()
    with meeting(shared) as (model, wire):
        for events in last:
            wire.send(events)
    os.unlink(shared.at.removeprefix("unix:"))
    shared.open(ScriptedBackend())
    assert model.wait_until_loaded(20)
    assert isinstance(take_all(model.submit([job("a")]))[-1], Finished)


def test_a_server_does_not_wait_for_an_engine_that_can_not_load(house):
    shared = house()
    with meeting(shared) as (model, wire):
        wire.send([messages.Stopped(ModelError("no weights"))])
        assert not model.wait_until_loaded(20)
    assert type(model.error) is ModelError and "no weights" in str(model.error)


class Exhausted(socket.socket):
    """A listener that has no file descriptor for the first connection."""

    has_failed = False

    def accept(self):
        if not self.has_failed:
            self.has_failed = True
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_a_connection_that_can_not_be_accepted_keeps_no_other_out(house, monkeypatch, caplog):
    listen = address.listen
    monkeypatch.setattr(address, "listen", lambda at: Exhausted(fileno=listen(at).detach()))
    shared = house()
    shared.open(ScriptedBackend())
    assert isinstance(take_all(shared.connect().submit([job("a")]))[-1], Finished)
    assert "no connection can be accepted: [Errno 24] Too many open files" in caplog.text
