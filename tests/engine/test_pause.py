"""A server that stands still for longer than a hang may last: stopped, frozen with its machine."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
HANG_TIMEOUT, HANG_EXIT = 1.5, 2.0  # seconds
PAUSE = 2.5

SERVER = f"""
import functools, sys, time
from switchyard.engine import Engine, ModelConfig
from switchyard.engine.links.pipe import PipeLink
from switchyard.engine.links.thread import EngineThread
from switchyard.engine.messages import Chunk, Finished
from tests.engine.test_pause import long_steps
from tests.scripted import ScriptedBackend, job, make_again
config = ModelConfig(sys.argv[1], "test", hang_timeout={HANG_TIMEOUT}, hang_exit={HANG_EXIT})
if sys.argv[2] == "thread":
    link = functools.partial(EngineThread, config, lambda: ScriptedBackend(long_steps))
else:
    make = functools.partial(make_again, ScriptedBackend, (long_steps,))
    link = functools.partial(PipeLink, config, make)
model = Engine(config, link)
model.start()
assert model.wait_until_loaded(60), model.error
stream = model.submit([job("a", 5)])
while not stream.is_finished:
    for event in stream.take(20):
        print(type(event).__name__, getattr(event, "error", ""), flush=True)
print(model.state, flush=True)
model.close(timeout=20)
"""


def long_steps(job):
    """Each of many short sleeps, so that none of them is over as the pause is."""
    from switchyard.engine.messages import Chunk
    from tests.scripted import finished

    for _ in range(job.max_new_tokens):
        for _ in range(20):
            time.sleep(0.02)
        yield Chunk(job.identifier, "x", (0,))
    yield finished(job, job.max_new_tokens)


def children_of(pid):
    for path in pathlib.Path(f"/proc/{pid}/task").iterdir():
        yield from map(int, (path / "children").read_text().split())


@pytest.mark.parametrize("link", ["thread", "process"])
def test_a_pause_of_the_whole_server_is_no_hang(model_path, link):
    command = [sys.executable, "-c", SERVER, model_path, link]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        try:
            assert server.stdout.readline().split() == ["Chunk"]
            pids = [server.pid, *children_of(server.pid)]
            assert len(pids) == (1 if link == "thread" else 2)
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(PAUSE)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            told = server.stdout.read().split("\n")
        finally:
            server.kill()
    assert [line.split() for line in told] == [["Chunk"]] * 4 + [["Finished"], ["ready"], []]
