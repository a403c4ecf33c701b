"""What tests read of streams and engines."""

from switchyard.engine.messages import Chunk


def take_all(stream):
    events = []
    while not stream.is_finished:
        taken = stream.take(120)
        assert taken, "no event in 120 s"
        events += taken
    return events


def text(events):
    return "".join(event.text for event in events if isinstance(event, Chunk))
