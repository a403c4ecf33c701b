"""The jobs of an engine that several servers share: real sockets, a scripted backend."""

import contextlib
import dataclasses
import os
import socket
import struct
import threading
import time
import types

import pytest

from switchyard.engine import messages
from switchyard.engine.errors import BatchFailed, Full, InvalidJob
from switchyard.engine.links.hosts.front_end import FrontEnd
from switchyard.engine.messages import Chunk, Failed, Finished, ListPending, PutBack, Submit
from switchyard.engine.sampling import Sampling
from tests.engine.hosts.house import connected, link_of, received, told
from tests.engine.reading import drawn_out, take_all, take_until_text, wait_for_state, wait_until
from tests.scripted import ScriptedBackend, count, finished, job, ticking


def named(one):
    """Its own name, so often as it asks."""
    yield messages.Started(one.identifier)
    for i in range(one.max_new_tokens):
        yield Chunk(one.identifier, f"{one.identifier} ", (i,))
    yield finished(one, one.max_new_tokens)


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
    wait_until(host, lambda: host.num_jobs == 1)
    assert list(backend.active) == ["bob"] and len(host._front_ends) == 1


def test_all_front_ends_together_have_the_limit_of_one(house):
    shared = house(max_batch_size=1, max_pending=2)
    shared.open(ScriptedBackend(ticking))
    ann, bob = shared.connect(), shared.connect()
    held = [ann.submit([job("ann", 1000)])]
    take_until_text(held[0])
    held += [bob.submit([job(f"bob-{i}")]) for i in range(2)]
    assert len(bob.jobs(20)) == 3  # the host has come by them
    [end] = take_all(ann.submit([job("one more")]))
    assert type(end.error) is Full and "3 of 3 jobs are active or waiting" in str(end.error)
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
    assert ann.jobs(20)  # the host has come by the third
    told = {one.identifier: one for one in bob.jobs(20)}
    assert told["first"].state == "decode" and told["first"].new_tokens > 0
    assert (told["first"].owner, told["first"].num_pages) == ("ann", 1)
    places = {name: told[name].place for name in ("second", "third")}
    assert sorted(places.values()) == [1, 2]
    assert [one.identifier for one in bob.jobs(timeout=0)] == ["second"]
    assert bob.queued("second", 0.0, 20).place == places["second"]
    assert ann.queued("third", 0.0, 20).place == places["third"]
    assert bob.cancel("third") and take_all(third)[-1].finish_reason == "cancelled"
    assert bob.cancel("first") and take_all(first)[-1].finish_reason == "cancelled"
    assert isinstance(take_all(second)[-1], Finished)
    assert bob.cancel("nobody's")  # it can't know


def test_what_a_front_end_may_not_say_changes_nothing(shared):
    shared.open(ScriptedBackend(ticking))
    ann, bob = shared.connect(), shared.connect()
    stream = ann.submit([job("a", 1000)])
    take_until_text(stream)
    link_of(bob)._commands.put(messages.Stop())
    link_of(bob).send(messages.Abandon())
    assert bob.jobs(20)  # the engine has come by them
    take_until_text(stream)


def test_a_job_that_asks_for_what_the_engine_does_not_know_is_refused_alone(house, monkeypatch):
    """It comes from a server of a later version, which has one more sampler."""
    later = dataclasses.make_dataclass(
        "Sampling", [("sharpness", float, 0.0)], bases=(Sampling,), frozen=True
    )
    later.__module__ = Sampling.__module__
    shared = house()
    shared.open(ScriptedBackend())
    sent = []
    with connected(shared) as wire:
        with monkeypatch.context() as version:
            version.setattr("switchyard.engine.sampling.Sampling", later)
            version.setattr(wire, "_socket", types.SimpleNamespace(sendall=sent.append))
            for name, sharpness in (("a", 0.0), ("b", 1.5)):
                wire.send(Submit(job(name, 3, sampling=later(sharpness=sharpness)), 0.0))
        wire._socket.sendall(b"".join(sent))  # the engine is in this process: its version is back
        [failed] = told(wire, Failed)
        assert failed.identifier == "b" and type(failed.error) is InvalidJob
        assert "earlier version, which doesn't know sharpness" in str(failed.error)
        assert [one.identifier for one in told(wire, Finished)] == ["a"]


def test_an_engine_tells_what_waits_in_all_its_servers(shared):
    shared.open(ScriptedBackend())
    with connected(shared) as first, connected(shared) as second:
        for wire, number in ((first, 3), (first, 5), (second, 2)):
            wire.send(messages.Demand(number))
        for wire in (first, second):  # its answer comes after what was sent before
            wire.send(ListPending(1))
            told(wire, messages.PendingList)
        first.send(Submit(job("a", 3), 0.0))
        told(first, Finished)
        while not (found := [one for one in first.told if getattr(one, "num_wanted", 0)]):
            first.told += received(first)
        assert found[0].num_wanted == 7


def test_what_has_no_text_outlives_the_engine_process(house):
    """One job has text, one waits, and one comes while there is no engine."""
    shared = house(max_batch_size=1)
    model = shared.serve(drawn_out)
    told = model.submit([job("told", 1000)])
    take_until_text(told)
    waits = model.submit([job("waits")])
    shared.hosts[0].close(timeout=20)
    error = take_all(told)[-1].error
    assert type(error) is BatchFailed
    assert str(error) == f"the engine at {shared.at} has ended"
    wait_for_state(model, "recovering")
    later = model.submit([job("later")])
    shared.open(ScriptedBackend(drawn_out))
    events = take_all(waits)
    assert isinstance(events[0], PutBack) and isinstance(events[-1], Finished)
    assert isinstance(take_all(later)[-1], Finished)
    assert model.state == "ready"


def test_an_engine_that_drains_ends_what_it_has_and_gets_nothing_new(house, gate):
    shared = house(max_batch_size=1)
    model = shared.serve(count, gate)
    [host] = shared.hosts
    first, second = model.submit([job("first")]), model.submit([job("second")])
    gate.wait_until_held()
    closing = threading.Thread(target=host.close, args=(20.0, 20.0))
    closing.start()
    wait_for_state(model, "recovering")
    assert "accepts no more jobs" in str(model.error)
    third = model.submit([job("third")])
    gate.open()
    for stream in (first, second):
        assert isinstance(take_all(stream)[-1], Finished)
    closing.join(20)
    shared.open(ScriptedBackend())
    assert isinstance(take_all(third)[-1], Finished)


def test_a_job_that_comes_back_follows_the_one_that_was_lost(house, gate):
    """Its connection was lost, and the host knows of the new one first."""
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
        assert not [event for event in new.told if isinstance(event, Failed)]
    assert host.num_jobs == 0 and len(backend.enqueued) == 2


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


def test_a_write_to_a_front_end_has_the_limit_of_a_silence(ends):
    FrontEnd(ends[0], None, 1, 2.5, None, None)
    limit = ends[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16)
    assert struct.unpack("ll", limit) == (2, 500_000)


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
        wait_until(host, lambda: not host.num_jobs)
    assert "a" not in backend.active
