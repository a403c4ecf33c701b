"""A shared engine over a scripted backend, its servers, and the wires of either by hand."""

import contextlib
import dataclasses
import functools
import os
import socket

from switchyard.engine.config import ModelConfig
from switchyard.engine.engine import Engine
from switchyard.engine.links.hosts import address, handshake
from switchyard.engine.links.hosts.handshake import meet_engine
from switchyard.engine.links.hosts.host import Host
from switchyard.engine.links.hosts.introduction import Hello, Welcome
from switchyard.engine.links.hosts.socket_link import SocketLink
from switchyard.engine.links.replicas import ReplicaLink
from switchyard.engine.links.thread import EngineThread
from switchyard.engine.links.wire import Wire
from switchyard.engine.messages import Loaded
from tests.scripted import ScriptedBackend, count

KEY = b"k" * 32
FINGERPRINT = "fp_1"


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

    def serve(self, script=count, gate=None):
        """The model of a server, over an engine of its own."""
        self.open(ScriptedBackend(script, gate))
        return self.connect()

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


def link_of(model):
    [replica] = model._link._replicas
    return replica.link


@contextlib.contextmanager
def connected(shared, key=None, **options):
    """The wire of a front end, by hand."""
    connection = address.connect(shared.at, 5.0)
    for name, value in options.items():
        connection.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    welcome, seals = meet_engine(connection, key or shared.key, Hello(1, FINGERPRINT))
    assert welcome.refusal == ""
    with Wire(connection, seals) as wire:
        wire.told = []
        yield wire


def told(wire, kind, gate=None):
    """Events of a kind, the first that come."""
    while not (found := [event for event in wire.told if isinstance(event, kind)]):
        if gate is not None:
            gate.step()
        wire.told += received(wire)
    return found


def received(wire):
    messages_ = wire.receive(20)
    assert messages_ is not None, f"nothing more, after {wire.told}"
    return [event for events in messages_ for event in events]


@contextlib.contextmanager
def meeting(shared, is_loaded=False):
    """A server's model, and the wire of an engine that has let it in and goes by hand."""
    with address.listen(shared.at) as first:
        model = shared.connect(is_waited_for=False)
        connection, _ = first.accept()
        handshake.meet_server(connection, b"", lambda _: Welcome(7))
        with Wire(connection) as wire:
            if is_loaded:
                wire.send([Loaded(ScriptedBackend().open())])
                assert model.wait_until_loaded(20)
            yield model, wire


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def hello_of(protocol, nonce=None):
    return handshake._GREETING.pack(b"switchyard", protocol, nonce or os.urandom(32))
