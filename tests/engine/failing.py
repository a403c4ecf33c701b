"""Engines whose backend waits, or fails."""

import threading

from switchyard.engine.messages import Failed, Finished
from tests.scripted import Gate, ScriptedBackend, count


def ends(events):
    return [event for event in events if isinstance(event, Finished | Failed)]


def held(make_engine, script=count, **config):
    """An engine whose backend waits at a gate."""
    gate = Gate()
    backend = ScriptedBackend(script, gate=gate)
    return make_engine(backend, **config), backend, gate


def failing_to_enqueue(backend, **errors):
    """The jobs of these names fail as they are set up, each time with the next of its errors."""
    enqueue = backend.enqueue

    def fail(job):
        if errors.get(job.identifier):
            raise errors[job.identifier].pop(0)
        enqueue(job)

    backend.enqueue = fail


def names(param):
    """For `pytest.raises`: whether an error is about this parameter."""
    return lambda error: error.param == param


def begin(call, *args):
    """A thread of its own."""
    thread = threading.Thread(target=call, args=args)
    thread.start()
    return thread


def let_through(gate, times=1):
    """So many iterations, and hold the next."""
    gate.step(times)
    for _ in range(times):
        gate.wait_until_held()
