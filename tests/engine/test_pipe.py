"""An engine thread in a process of its own: real processes, real signals."""

import contextlib
import ctypes
import enum
import functools
import logging
import os
import pathlib
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from switchyard import engine
from switchyard.engine import errors
from switchyard.engine.config import ModelConfig
from switchyard.engine.links import pipe
from switchyard.engine.links.pipe import PipeLink
from switchyard.engine.links.wire import Wire
from switchyard.engine.messages import (
    Chunk,
    Failed,
    Finished,
    Hanging,
    LoadProgress,
    Started,
    TokenLogprob,
)
from tests.scripted import ScriptedBackend, count, job, make_again, ticking
from tests.scripted import finished as end_of

ROOT = pathlib.Path(__file__).parent.parent.parent


class Fault(enum.IntEnum):
    """What a job's seed brings about."""

    KILL = 1001
    EXIT = 1002
    SEGFAULT = 1003
    STOP = 1004
    HOLD = 1005
    HANG = 1006
    LOSE = 1007
    LOG = 1008
    FAIL = 1009
    HEAPS = 1010


@pytest.fixture
def link():
    return "process"


def fatal(job):
    """What the job's seed says, at once."""
    match job.sampling.seed:
        case Fault.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case Fault.STOP:
            os.kill(os.getpid(), signal.SIGSTOP)
        case Fault.EXIT:
            os._exit(7)
        case Fault.SEGFAULT:
            ctypes.string_at(0)
        case Fault.HOLD:  # Python's lock
            ctypes.PyDLL(None).pause()
        case Fault.HANG:
            threading.Event().wait()
        case Fault.LOSE:
            raise errors.DeviceLost("the device is lost")
        case Fault.LOG:
            logging.getLogger("switchyard.engine.backends").debug("in detail")
            logging.getLogger("switchyard.engine.backends").warning("from %s", "afar")
        case Fault.HEAPS:
            logging.getLogger("switchyard.engine.backends").warning("heaps: %d", num_heaps())
        case Fault.FAIL:
            raise RuntimeError("an iteration fails")
    yield from (ticking if job.max_new_tokens > 1000 else count)(job)


def num_heaps():
    """Of the C library, in this process."""
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    with tempfile.NamedTemporaryFile() as file:
        stream = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
        libc.malloc_info(0, stream)
        libc.fclose(stream)
        return file.read().count(b"<heap nr=")


def seeded(seed, identifier="a", **more):
    return job(identifier, 3, sampling=engine.Sampling(seed=seed), **more)


def take_all(stream):
    events = []
    while not stream.is_finished:
        taken = stream.take(20)
        assert taken, "no event in 20 s"
        events += taken
    return events


def child_of(model):
    thread = model._link._thread.native_id
    [child] = pathlib.Path(f"/proc/{os.getpid()}/task/{thread}/children").read_text().split()
    return int(child)


def assert_gone(pid):
    """Gone or a zombie of another process, within 20 s."""
    deadline = time.monotonic() + 20
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.02)


def assert_serves(model):
    assert model.wait_until_loaded(60), model.error
    with model._changed:  # a job's failure is told before the recovery from it
        assert model._changed.wait_for(lambda: model.error is None, 20)
    events = take_all(model.submit([job("after", 2)]))
    assert [type(event) for event in events] == [Started, Chunk, Chunk, Finished]


@pytest.mark.parametrize(
    ("seed", "reason"),
    [
        (Fault.KILL, "the engine's process was killed by SIGKILL"),
        (Fault.EXIT, "the engine's process ended with status 7"),
        (Fault.SEGFAULT, "the engine's process was killed by SIGSEGV"),
        (Fault.LOSE, "the device is lost"),
    ],
)
def test_a_child_that_dies_ends_its_jobs_once_and_another_serves(make_engine, seed, reason):
    model = make_engine(ScriptedBackend(fatal, max_active=2))
    child = child_of(model)
    active = model.submit([job("active", 1001)])
    events = active.take(20)
    fault = model.submit([seeded(seed)])
    waiting = model.submit([job("waiting")])
    events += take_all(active)
    end = events[-1]
    assert sum(isinstance(event, Finished | Failed) for event in events) == 1
    assert type(end.error) is engine.BatchFailed and reason in str(end.error)
    for stream in (fault, waiting):
        [end] = take_all(stream)
        assert isinstance(end, Failed)
    assert_serves(model)
    assert child_of(model) != child
    assert_gone(child)


def test_the_jobs_of_a_killed_child_end_before_its_memory_is_free(make_engine, monkeypatch):
    """The kernel frees what a GPU holds first, and lets a process be waited for then."""
    model = make_engine(ScriptedBackend(fatal))
    stream = model.submit([job("a", 1001)])
    stream.take(20)
    is_free = threading.Event()
    monkeypatch.setattr(subprocess.Popen, "poll", lambda process: process.returncode)
    wait = subprocess.Popen.wait
    monkeypatch.setattr(
        subprocess.Popen, "wait", lambda *arguments: is_free.wait(60) and wait(*arguments)
    )
    child = child_of(model)
    os.kill(child, signal.SIGKILL)
    end = take_all(stream)[-1]
    assert isinstance(end, Failed) and "was killed by SIGKILL" in str(end.error)
    assert child_of(model) == child and model.state != "ready"
    is_free.set()
    assert_serves(model)


def test_the_threads_of_a_gpu_have_no_part_in_the_wire(make_engine):
    """It would stay open until the last of them has ended."""
    own = pathlib.Path(f"/proc/{child_of(make_engine(ScriptedBackend(count)))}/task")

    def sockets(task):
        links = [os.readlink(file) for file in task.glob("fd/*")]
        return [one for one in links if one.startswith("socket:")]

    holders = [task for task in own.iterdir() if sockets(task)]
    assert len(holders) == 2 and own / own.parent.name not in holders


def test_the_progress_of_a_load_crosses(model_path, monkeypatch):
    shares = []
    deliver = engine.Engine.deliver

    def note(model, events):
        shares.extend(event.share for event in events if isinstance(event, LoadProgress))
        deliver(model, events)

    monkeypatch.setattr(engine.Engine, "deliver", note)
    model = engine.open_engine(ModelConfig(model_path, "model", link="process"))
    model.start()
    assert model.wait_until_loaded(120)
    assert len(shares) > 2 and shares == sorted(shares)
    assert model.close(timeout=20)


def test_jobs_are_refused_while_the_next_child_loads(make_engine):
    model = make_engine(ScriptedBackend(fatal))
    stream = model.submit([job("a", 1001)])
    stream.take(20)
    os.kill(child_of(model), signal.SIGKILL)
    assert isinstance(take_all(stream)[-1], Failed)
    with contextlib.suppress(engine.Loading):
        model.submit([job("b")]).close()
        assert model.state == "ready", "taken while it loaded"
    assert_serves(model)


@pytest.mark.parametrize("seed", [Fault.STOP, Fault.HOLD])
def test_a_child_that_is_silent_hangs_and_is_replaced(make_engine, seed):
    model = make_engine(
        ScriptedBackend(fatal), silence_timeout=1.0, hang_exit=2.0, hang_timeout=2.0
    )
    child = child_of(model)
    stream = model.submit([job("a", 1001)])
    stream.take(20)
    model.submit([seeded(seed, "b")])
    assert "is silent, since 1 s" in str(take_all(stream)[-1].error)
    with model._changed:
        assert model._changed.wait_for(lambda: model.state == "loading", 20)
    assert "is silent, since 2 s" in str(model.error)
    assert_serves(model)
    assert_gone(child)


def test_an_idle_child_says_that_it_lives():
    here, there = Wire.pair()
    outbox = queue.SimpleQueue()
    args = (there, outbox, 0.01)
    writer = threading.Thread(target=pipe._write_events, args=args, name="events")
    with here, there:
        writer.start()
        try:
            for _ in range(3):
                assert here.receive(20) == [[]]
        finally:
            outbox.put(None)
            writer.join(20)


class Silent:
    """A wire on which nothing comes. It knows how long its reader has waited."""

    def __init__(self):
        self.waited = 0.0

    def receive(self, timeout):
        self.waited += timeout
        assert self.waited < 100, "waits for ever"


def test_a_silent_child_is_told_at_the_one_limit_and_given_up_at_the_other(model_path):
    told, here = [], Silent()
    config = ModelConfig(
        model_path, "scripted", silence_timeout=3.0, hang_timeout=4.0, hang_exit=4.0
    )
    link = PipeLink(config, None, lambda events: told.append((here.waited, *events)))
    assert link._hear(here) is None
    assert here.waited == pytest.approx(4.0, abs=0.5)
    [(waited, event)] = told
    assert isinstance(event, Hanging) and waited == pytest.approx(3.0, abs=0.5)


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_a_child_that_can_not_be_ended_is_told_and_not_replaced(make_engine, monkeypatch):
    monkeypatch.setattr(pipe, "KILL_TIMEOUT", 0.5)
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: None)
    model = make_engine(
        ScriptedBackend(fatal), silence_timeout=1.0, hang_timeout=2.0, hang_exit=2.0
    )
    child = child_of(model)
    model.submit([seeded(Fault.STOP)])
    with model._changed:
        assert model._changed.wait_for(lambda: model.state == "stopped", 20)
    assert str(model.error) == f"the engine's process {child} can't be ended"
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[0] == child


def test_a_child_whose_step_hangs_is_replaced(make_engine):
    model = make_engine(ScriptedBackend(fatal), hang_timeout=1.0, hang_exit=2.0)
    stream = model.submit([job("a", 1001)])
    stream.take(20)
    model.submit([seeded(Fault.HANG, "b")])
    assert "a step of the generator does not return" in str(take_all(stream)[-1].error)
    with model._changed:
        assert model._changed.wait_for(lambda: model.state == "loading", 20)
    assert_serves(model)


def test_a_failed_iteration_is_recovered_from_in_the_same_child(make_engine):
    model = make_engine(ScriptedBackend(fatal))
    child = child_of(model)
    [*_, end] = take_all(model.submit([seeded(Fault.FAIL)]))
    assert str(end.error) == "RuntimeError: an iteration fails"
    assert_serves(model)
    assert child_of(model) == child


def test_a_child_that_dies_while_it_loads_is_not_tried_again(make_engine):
    model = make_engine(DyingAtOpen())
    assert isinstance(model.error, engine.ModelError)
    assert str(model.error) == "the engine's process ended with status 5"
    assert model.state == "stopped"


class DyingAtOpen(ScriptedBackend):
    def open(self):
        os._exit(5)


@pytest.mark.parametrize(
    ("ours", "gpus", "visible", "order"),
    [
        (None, (), None, None),
        ("1,2", (), "1,2", None),
        (None, (2, 0), "2,0", "PCI_BUS_ID"),
        ("5, GPU-a,GPU-b", (2, 0), "GPU-b,5", "PCI_BUS_ID"),
    ],
)
def test_a_child_sees_the_gpus_that_are_its_own(
    make_engine, monkeypatch, ours, gpus, visible, order
):
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if ours is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ours)
    model = make_engine(ScriptedBackend(), gpus=gpus)
    lines = pathlib.Path(f"/proc/{child_of(model)}/environ").read_bytes().decode().split("\0")
    environ = dict(line.split("=", 1) for line in lines if line)
    assert environ.get("CUDA_VISIBLE_DEVICES") == visible
    assert environ.get("CUDA_DEVICE_ORDER") == order
    assert environ["PYTHONPATH"]


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
    with model._changed:
        assert model._changed.wait_for(lambda: model.state == "stopped", 20)
    assert "the link failed" in str(model.error)
    assert model.close(timeout=20)


def test_a_command_that_can_not_cross_is_an_error_not_a_silence(make_engine, caplog):
    model = make_engine(ScriptedBackend(fatal))
    [end] = take_all(model.submit([job("a", request_id=lambda: None)]))
    assert isinstance(end, Failed)
    assert "a command can't cross" in caplog.text
    assert_serves(model)


def test_an_event_that_can_not_cross_is_an_error_not_a_silence(make_engine):
    model = make_engine(ScriptedBackend(uncrossable))
    stream = model.submit([job("a")])
    assert isinstance(take_all(stream)[-1], Failed)
    with model._changed:
        assert model._changed.wait_for(lambda: model.state == "ready", 60)


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


def test_places_in_the_queue_cross(make_engine):
    model = make_engine(ScriptedBackend(ticking, max_active=1))
    streams = [model.submit([job(name)]) for name in ("a", "b", "c")]
    streams[0].take(20)
    assert [state.place for state in model.jobs(20)] == [None, 1, 2]


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
    deadline = time.monotonic() + 20
    while "opens" not in caplog.messages:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert model.close(timeout=20)


def test_a_child_that_dies_in_the_drain_ends_it(make_engine):
    model = make_engine(ScriptedBackend(ticking))
    stream = model.submit([job("a", 1000)])
    stream.take(20)
    closing = threading.Thread(target=model.close, args=(600, 20))
    closing.start()
    with model._changed:
        assert model._changed.wait_for(lambda: model.state == "draining", 20)
    os.kill(child_of(model), signal.SIGKILL)
    assert isinstance(take_all(stream)[-1], Failed)
    closing.join(30)
    assert not closing.is_alive() and model.state == "stopped" and model.error is None


ORPHAN = """
import functools, sys
from tests.scripted import ScriptedBackend, make_again
from tests.engine.test_pipe import Fault, fatal, seeded
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
from tests.engine.test_pipe import child_of
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
