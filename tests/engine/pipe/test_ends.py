"""An engine's process dies, hangs, is silent: its jobs end once, and another serves."""

import contextlib
import os
import pathlib
import queue
import signal
import subprocess
import threading

import pytest

from switchyard import engine
from switchyard.engine.config import ModelConfig
from switchyard.engine.links import pipe
from switchyard.engine.links.pipe import PipeLink
from switchyard.engine.links.wire import Wire
from switchyard.engine.messages import Failed, Finished, Hanging, LoadProgress
from tests.engine.pipe.child import Fault, assert_gone, assert_serves, child_of, fatal, seeded
from tests.engine.reading import take_all, wait_for_state
from tests.scripted import ScriptedBackend, count, job


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


def test_an_end_without_a_fault_and_a_signal_without_a_name_are_told():
    assert pipe._end(0) == "ended with status 0"
    assert pipe._end(-40) == "was killed by signal 40"


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
    model = make_engine(ScriptedBackend(fatal), silence_timeout=1.0, hang_exit=2.0, hang_timeout=2)
    child = child_of(model)
    stream = model.submit([job("a", 1001)])
    stream.take(20)
    model.submit([seeded(seed, "b")])
    assert "has been silent for 1 s" in str(take_all(stream)[-1].error)
    wait_for_state(model, "loading")
    assert "has been silent for 2 s" in str(model.error)
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
    config = ModelConfig(model_path, "scripted", silence_timeout=3.0, hang_timeout=4, hang_exit=4)
    link = PipeLink(config, None, lambda events: told.append((here.waited, *events)))
    assert link._hear(here) is None
    assert here.waited == pytest.approx(4.0, abs=0.5)
    [(waited, event)] = told
    assert isinstance(event, Hanging) and waited == pytest.approx(3.0, abs=0.5)


def test_that_no_process_can_be_started_is_told_and_ends_the_link(model_path, monkeypatch):
    def start(there, gpus):
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(pipe, "_start", start)
    events = []
    link = PipeLink(ModelConfig(model_path, "tiny"), ScriptedBackend, events.extend)
    link.start()
    assert link.join(20) and link.pid is None
    [stopped] = events
    assert type(stopped.error) is engine.ModelError
    assert "no process can be started" in str(stopped.error)
    assert "Resource temporarily unavailable" in str(stopped.error)


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_a_child_that_can_not_be_ended_is_told_and_not_replaced(make_engine, monkeypatch):
    monkeypatch.setattr(pipe, "KILL_TIMEOUT", 0.5)
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: None)
    model = make_engine(ScriptedBackend(fatal), silence_timeout=1.0, hang_timeout=2.0, hang_exit=2)
    child = child_of(model)
    model.submit([seeded(Fault.STOP)])
    wait_for_state(model, "stopped")
    assert str(model.error) == f"the engine's process {child} can't be ended"
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[0] == child


def test_a_child_whose_step_hangs_is_replaced(make_engine):
    model = make_engine(ScriptedBackend(fatal), hang_timeout=1.0, hang_exit=2.0)
    stream = model.submit([job("a", 1001)])
    stream.take(20)
    model.submit([seeded(Fault.HANG, "b")])
    assert "a step of the generator does not return" in str(take_all(stream)[-1].error)
    wait_for_state(model, "loading")
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
def test_a_child_sees_its_own_gpus(make_engine, monkeypatch, ours, gpus, visible, order):
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


def test_a_child_that_ends_before_it_has_read_all_has_ended(model_path):
    link = PipeLink(ModelConfig(model_path, "scripted"), seeded, lambda events: None)
    here, there = Wire.pair()
    with here:
        here.send("unread")
        there.close()
        assert link._receive(here, is_loaded=True) is None


def test_an_event_that_can_not_cross_ends_the_child(monkeypatch, capsys):
    statuses, outbox = [], queue.SimpleQueue()
    monkeypatch.setattr(os, "_exit", statuses.append)
    here, there = Wire.pair()
    with here, there:
        outbox.put(threading.Lock())
        outbox.put(None)
        pipe._write_events(there, outbox, 20.0)
    assert statuses == [1] and "cannot pickle" in capsys.readouterr().err
