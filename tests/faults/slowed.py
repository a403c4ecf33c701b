"""The real backend, slowed down as a job's seed asks: so many milliseconds an iteration during its
prompt, times 1000, and so many while its tokens come.
"""

import time

from switchyard.engine.backends import make_backend as make_real_backend


class SlowedBackend:
    def __init__(self, backend):
        self._backend = backend
        self._seeds = {}
        self._in_prefill = set()

    def __getattr__(self, name):
        return getattr(self._backend, name)

    def enqueue(self, job):
        self._backend.enqueue(job)
        self._seeds[job.identifier] = job.sampling.seed or 0
        self._in_prefill.add(job.identifier)

    def cancel(self, identifier):
        self._forget(identifier)
        return self._backend.cancel(identifier)

    def iterate(self):
        delays = [divmod(s, 1000)[i not in self._in_prefill] for i, s in self._seeds.items()]
        time.sleep(max(delays, default=0) / 1000)
        events = self._backend.iterate()
        for event in events:
            kind = type(event).__name__
            if kind == "Chunk":
                self._in_prefill.discard(event.identifier)
            elif kind in ("Finished", "Failed"):
                self._forget(event.identifier)
        return events

    def _forget(self, identifier):
        self._seeds.pop(identifier, None)
        self._in_prefill.discard(identifier)


def make_backend(config, *more):
    return SlowedBackend(make_real_backend(config, *more))
