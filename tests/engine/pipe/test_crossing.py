"""What crosses between a server and its engine's process, and their common end."""

import functools
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading

import pytest

from switchyard import engine
from switchyard.engine import errors
from switchyard.engine.config import ModelConfig
from switchyard.engine.links import pipe
from switchyard.engine.links.pipe import PipeLink
from switchyard.engine.links.wire import Wire
from switchyard.engine.messages import Chunk, Failed, TokenLogprob
from tests.conftest import ROOT, wait_for
from tests.engine.pipe.child import Fault, assert_gone, assert_serves, child_of, fatal, seeded
from tests.engine.reading import take_all, wait_for_state
from tests.scripted import ScriptedBackend, job, make_again, ticking
from tests.scripted import finished as end_of


def test_that_there_is_no_memory_crosses_as_that(make_engine):
    model = make_engine(WithoutRoom())
    assert type(model.error) is engine.NoRoom
    assert (str(model.error), model.error.param) == ("9 GiB, and 8 are free", "cache_tokens")
    assert model.state == "stopped"


class WithoutRoom(ScriptedBackend):
    def open(self):
        raise engine.NoRoom("9 GiB, and 8 are free", "cache_tokens")


def test_what_can_not_cross_is_an_error_not_a_silence(model_path):
    config = ModelConfig(model_path, "scripted")
    model = engine.Engine(config, functools.partial(PipeLink, config, lambda: None))
    model.start()
    wait_for_state(model, "stopped")
    assert "the link failed" in str(model.error)
    assert model.close(timeout=20)


def test_a_command_that_can_not_cross_is_an_error_not_a_silence(make_engine, caplog):
    model = make_engine(ScriptedBackend(fatal))
    [end] = take_all(model.submit([job("a", request_id=lambda: None)]))
    assert isinstance(end, Failed)
    assert "a command can't be sent" in caplog.text
    assert_serves(model)


def test_an_event_that_can_not_cross_is_an_error_not_a_silence(make_engine):
    model = make_engine(ScriptedBackend(uncrossable))
    stream = model.submit([job("a")])
    assert isinstance(take_all(stream)[-1], Failed)
    wait_for_state(model, "ready", 60)


def uncrossable(job):
    yield Chunk(job.identifier, lambda: None, (0,))


def test_a_job_is_cancelled_and_a_place_is_free_again(make_engine):
    model = make_engine(ScriptedBackend(ticking), max_batch_size=1, max_pending=0)
    stream = model.submit([job("a", 1000)])
    stream.take(20)
    with pytest.raises(engine.Full):
        model.submit([job("b")])
    assert model.cancel("a")
    end = take_all(stream)[-1]
    assert end.finish_reason == "cancelled" and end.timings.decode > 0
    second = model.submit([job("c", 1000)])
    assert second.take(20)
    second.close()


def test_no_signal_to_a_process_of_the_service_ends_the_child(make_engine):
    model = make_engine(ScriptedBackend(ticking))
    stream = model.submit([job("a", 1000)])
    child = child_of(model)
    assert os.getsid(child) == os.getpgid(child) == child
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(child, number)
    assert stream.take(20)
    stream.close()
    assert child_of(model) == child


@pytest.mark.parametrize(
    ("level", "told"),
    [
        ("INFO", [("WARNING", "from afar")]),
        ("DEBUG", [("DEBUG", "in detail"), ("WARNING", "from afar")]),
    ],
)
def test_logs_of_the_child_are_logs_here_from_the_same_level_on(make_engine, caplog, level, told):
    caplog.set_level(level, logger="switchyard.engine")
    model = make_engine(ScriptedBackend(fatal))
    take_all(model.submit([seeded(Fault.LOG)]))
    records = [r for r in caplog.records if r.name == "switchyard.engine.backends"]
    assert [(record.levelname, record.getMessage()) for record in records] == told


@pytest.mark.skipif(sys.platform != "linux", reason="of the GNU C library")
def test_the_threads_of_the_child_share_one_heap(make_engine, caplog, monkeypatch):
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    model = make_engine(ScriptedBackend(fatal))
    take_all(model.submit([seeded(Fault.HEAPS)]))
    assert "heaps: 1" in caplog.messages


def test_an_idle_child_says_that_it_lives_well_before_it_counts_as_hanging(model_path):
    here, there = Wire.pair()
    config = ModelConfig(model_path, "scripted", silence_timeout=8.0)
    made = functools.partial(make_again, ScriptedBackend, ScriptedBackend().made_of)
    with here, pipe._start(there, ()) as child:
        try:
            there.close()
            here.send((config, made, logging.WARNING))
            messages, timeout = [None], 60
            while messages[-1] != []:
                before, messages = messages, here.receive(timeout)
                assert messages, f"silent behind {before}"
                timeout = 6
        finally:
            child.kill()


def test_close_leaves_no_process(make_engine):
    model = make_engine(ScriptedBackend())
    child = child_of(model)
    assert model.close(timeout=20)
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


class NeverOpen(ScriptedBackend):
    def open(self):
        logging.getLogger("switchyard.engine.backends").warning("opens")
        threading.Event().wait()


def test_close_does_not_wait_for_a_model_that_loads(make_engine):
    model = make_engine(NeverOpen(), start=False)
    model.start()
    assert model.close(timeout=20)
    assert model.state == "stopped" and model.error is None


def test_nor_for_one_that_says_all_the_while_that_it_lives(make_engine, caplog):
    model = make_engine(NeverOpen(), start=False, silence_timeout=0.1)
    model.start()
    wait_for(lambda: "opens" in caplog.messages)
    assert model.close(timeout=20)


def test_a_child_that_dies_in_the_drain_ends_it(make_engine):
    model = make_engine(ScriptedBackend(ticking))
    stream = model.submit([job("a", 1000)])
    stream.take(20)
    closing = threading.Thread(target=model.close, args=(600, 20))
    closing.start()
    wait_for_state(model, "draining")
    os.kill(child_of(model), signal.SIGKILL)
    assert isinstance(take_all(stream)[-1], Failed)
    closing.join(30)
    assert not closing.is_alive() and model.state == "stopped" and model.error is None


ORPHAN = """
import functools, sys
from tests.scripted import ScriptedBackend, make_again
from tests.engine.pipe.child import Fault, fatal, seeded
from switchyard.engine import Engine, ModelConfig
from switchyard.engine.links.pipe import PipeLink
from switchyard.engine.links.wire import Wire
config = ModelConfig(sys.argv[1], "orphan", hang_timeout=1.0)
make_backend = functools.partial(make_again, ScriptedBackend, (fatal,))
model = Engine(config, functools.partial(PipeLink, config, make_backend))
model.start()
model.wait_until_loaded()
if sys.argv[2] == "holds":
    stream = model.submit([seeded(Fault.HOLD)])
    while not stream.is_finished:
        stream.take()
from tests.engine.pipe.child import child_of
print(child_of(model), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("what", ["idle", "holds"])
def test_the_child_of_a_killed_process_ends(model_path, what):
    command = [sys.executable, "-c", ORPHAN, model_path, what]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as process:
        child = int(process.stdout.readline())
        process.kill()
    assert_gone(child)


def errors_of(kind):
    yield kind
    for other in kind.__subclasses__():
        yield from errors_of(other)


@pytest.mark.parametrize("kind", list(errors_of(errors.EngineError)))
def test_errors_cross_whole(kind):
    error = kind("message")
    error.param = "seed"
    if isinstance(error, errors.Refused):
        error.retry_after = 7.0
    crossed = pickle.loads(pickle.dumps(error))
    assert type(crossed) is kind and str(crossed) == "message"
    assert vars(crossed) == vars(error)


def test_events_cross_whole():
    logprob = TokenLogprob(1, -0.5, ((1, -0.5), (2, -1.0)))
    for event in (Chunk("a", "x", (1, 2)), Chunk("a", "x", (1,), (logprob,)), end_of(job("a"), 3)):
        assert pickle.loads(pickle.dumps(event)) == event
