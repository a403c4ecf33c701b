"""Masks that come when a test releases them, for the real generator."""

import threading

from tests.engine.forced import ending, step


class Source:
    """The masks of one grammar, in order: each waits for its release. Others come at once."""

    def __init__(self, backend, constraint, num_free=0):
        self._grammar = constraint.grammar
        self._make = backend._grammars.matcher
        self._released = threading.Semaphore(num_free)
        self._is_open = False
        self.is_waited_for = threading.Event()
        self.changed = threading.Event()  # set by whatever may end a wait
        backend._grammars.matcher = self._matcher

    def release(self, number=1):
        self.is_waited_for.clear()
        self._released.release(number)

    def open(self):
        self._is_open = True
        self.release(64)

    def wait(self):
        if not self._is_open and not self._released.acquire(blocking=False):
            self.is_waited_for.set()
            self.changed.set()
            assert self._released.acquire(timeout=60)

    def _matcher(self, grammar):
        matcher = self._make(grammar)
        return _Held(matcher, self) if grammar == self._grammar else matcher


class _Held:
    def __init__(self, matcher, source):
        self._matcher = matcher
        self._source = source

    def compute_bitmask(self):
        self._source.wait()
        return self._matcher.compute_bitmask()

    def __getattr__(self, name):
        return getattr(self._matcher, name)


def until_late(backend, source, name="slow"):
    """Take steps until a job waits for its mask. Returns their events."""
    events = []
    while backend._jobs[name].held is None or not source.is_waited_for.is_set():
        if backend.is_waiting(source.changed.set):
            assert source.changed.wait(20)
            source.changed.clear()
        else:
            events += backend.iterate()
    return events


def rest(backend, events):
    """Run all jobs to their ends. Returns each one's end, with its whole text."""
    told = list(events)
    while backend.num_jobs:
        told += step(backend)
    by_job = {}
    for event in told:
        by_job.setdefault(event.identifier, []).append(event)
    return {identifier: ending(own) for identifier, own in by_job.items()}
