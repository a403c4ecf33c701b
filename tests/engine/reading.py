"""What tests read of streams and engines."""

from switchyard.engine.messages import Chunk, Finished
from tests.scripted import count, job, ticking


def take_all(stream):
    events = []
    while not stream.is_finished:
        taken = stream.take(120)
        assert taken, "no event in 120 s"
        events += taken
    return events


def text(events):
    return "".join(event.text for event in events if isinstance(event, Chunk))


def wait_until(model, condition, timeout=20):
    """Of an engine, a shared one too."""
    with model._changed:
        assert model._changed.wait_for(condition, timeout)


def wait_for_state(model, state, timeout=20):
    wait_until(model, lambda: model.state == state, timeout)


def take_until_text(stream):
    taken = []
    while not any(isinstance(event, Chunk) for event in taken):
        taken = stream.take(20)
        assert taken, "no event in 20 s"


def drawn_out(one):
    """A script: no end before a token is wanted beyond ten, one every few milliseconds."""
    return ticking(one) if one.max_new_tokens > 10 else count(one)


def is_served(model, name="a", **more):
    """Whether a job ends as it should."""
    return isinstance(take_all(model.submit([job(name, **more)]))[-1], Finished)
