"""A scripted backend in a real server: a token of every job each 10 ms. Its seed says how a job
fails, and its limit whether it never ends.
"""

import threading
import time

from switchyard.engine.errors import DeviceLost
from switchyard.engine.messages import Chunk
from tests.scripted import ScriptedBackend, count, endless, finished

LOSE_DEVICE, HANG = 1001, 1002  # at the third token
FLOOD = 1003  # tokens of 64 KiB each
FAIL = 1004  # an iteration, at the hundredth token
THINK = 1005  # thoughts, then an answer
FAIL_LATER = 1006  # an iteration, once the job is cancelled
PAUSE = 1007  # of a second at each hundredth token
ENDLESS = 1901  # most tokens


class PacedBackend(ScriptedBackend):
    def iterate(self):
        time.sleep(0.01)
        return super().iterate()

    def cancel(self, identifier):
        [job] = [job for job in self.enqueued if job.identifier == identifier]
        if job.sampling.seed == FAIL_LATER:
            self.iterate_error = RuntimeError("an iteration fails")
        return super().cancel(identifier)


def script(job):
    if job.sampling.seed == THINK:
        for text in ("<think>h", "m</think>ye", "s"):
            yield Chunk(job.identifier, text, (0,))
        yield finished(job, 3, "stop")
        return
    for i, event in enumerate(endless(job) if job.max_new_tokens == ENDLESS else count(job)):
        if i == 3 and job.sampling.seed == LOSE_DEVICE:
            raise DeviceLost("the device is lost")
        if i == 100 and job.sampling.seed == FAIL:
            raise RuntimeError("an iteration fails")
        if i == 3 and job.sampling.seed == HANG:
            threading.Event().wait()
        if i % 100 == 0 and job.sampling.seed == PAUSE:
            time.sleep(1)
        if isinstance(event, Chunk) and job.sampling.seed == FLOOD:
            event = Chunk(event.identifier, "x" * 65536, event.token_ids)
        yield event


def make_backend(config, *_):
    return PacedBackend(script, max_active=config.max_batch_size)
