"""`switchyard`, over a backend whose text names its job: " 7.0 7.1 7.2" for the prompt [7]."""

import sys
import time

import switchyard.engine.models.opening
from switchyard.cli import main
from switchyard.engine.messages import Chunk, Started
from tests.scripted import ScriptedBackend, finished

TICK = 0.01  # seconds of a token


def text_of(prompt, num_tokens):
    return "".join(f" {prompt}.{i}" for i in range(num_tokens))


def named(job):
    yield Started(job.identifier)
    for i in range(job.max_new_tokens):
        yield Chunk(job.identifier, f" {job.prompt[0]}.{i}", (i,))
    yield finished(job, job.max_new_tokens)


class NamingBackend(ScriptedBackend):
    def iterate(self):
        time.sleep(TICK)
        return super().iterate()


def make_backend(config, *_):
    return NamingBackend(named, max_active=config.max_batch_size)


if __name__ == "__main__":
    switchyard.engine.models.opening.make_backend = make_backend
    sys.exit(main())
