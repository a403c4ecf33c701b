"""An engine thread in a child process, at the other end of a socket.

The child is restarted after the loss of its thread, its device or its process. When this process
ends, the child ends too, either because the socket closes or, if the child can't notice that,
because the kernel kills it.
"""

import contextlib
import ctypes
import faulthandler
import logging
import logging.handlers
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence

from switchyard.engine.backends.base import Backend
from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import Closed, DeviceLost, EngineError, ModelError
from switchyard.engine.links.base import Deliver
from switchyard.engine.links.thread import EngineThread
from switchyard.engine.links.wire import Wire, send_all
from switchyard.engine.memory.gpus import environment
from switchyard.engine.memory.process import keep_memory_small
from switchyard.engine.messages import Command, Event, Hanging, Loaded, Restarting, Stop, Stopped
from switchyard.engine.schedule.watchdog import interval_of

logger = logging.getLogger(__name__)

KILL_TIMEOUT = 30.0  # seconds; a process that is stuck in a driver ends once the driver returns
PULSES = 10  # signs of life per `silence_timeout`
PR_SET_PDEATHSIG = 1  # linux/prctl.h
CLONE_FILES = 0x400  # linux/sched.h
STAT_EXIT_CODE = 52 - 3  # proc(5), of the fields after the name
CODE = "from switchyard.engine.links.pipe import serve; serve({})"

MakeBackend = Callable[[Deliver], Backend]
FromChild = Sequence[Event] | logging.LogRecord | None  # None: the end


class PipeLink:
    """`make_backend` is called in the child, with the child's `deliver`. The function must be
    picklable, that is, a module-level function, or a `partial` of one.
    """

    at = ""

    def __init__(self, config: ModelConfig, make_backend: MakeBackend, deliver: Deliver) -> None:
        self._config = config
        self._make_backend = make_backend
        self._deliver = deliver
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._is_stopping = False
        self.pid: int | None = None  # of the child; None without one
        self._thread = threading.Thread(target=self._run, name=f"link-{config.name}", daemon=True)

    # Any thread

    def start(self) -> None:
        self._thread.start()

    def send(self, command: Command) -> None:
        if isinstance(command, Stop):
            self._is_stopping = True  # first: see `_run_children`
        self._commands.put(command)

    def join(self, timeout: float | None = None) -> bool:
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    # Link's thread: the kernel ends the child when this thread ends

    def _run(self) -> None:
        error: EngineError | None
        try:
            error = self._run_children()
        except BaseException as reason:
            logger.exception("the link failed")
            error = Closed(f"the link failed: {type(reason).__name__}: {reason}")
        self._deliver([Stopped(None if self._is_stopping else error)])

    def _run_children(self) -> EngineError | None:
        """Run one child after another, until a child ends on request or can't load the model.
        Returns the reason.
        """
        while True:
            is_loaded, error = self._run_child()
            if not is_loaded or self._is_stopping:
                return error
            # No job has been accepted since `Restarting`. The old queue has only commands for ended
            # jobs, and perhaps a `Stop`. The flag repeats the `Stop`, so that the next child ends
            # before it loads.
            self._commands = queue.SimpleQueue()

    def _run_child(self) -> tuple[bool, EngineError | None]:
        """Returns whether the child was loaded, and why it has ended, which is None after a
        `Stop`.
        """
        here, there = Wire.pair()
        with here:
            try:
                process = _start(there, self._config.gpus)
            except OSError as reason:
                return False, ModelError(f"no process can be started for the model: {reason}")
            finally:
                there.close()
            self.pid = process.pid
            logger.info("the engine of model %s is process %d", self._config.name, process.pid)
            commands = self._commands
            setup = (self._config, self._make_backend, logging.getLogger("switchyard.engine").level)
            arguments = (here, commands, process)
            writer = threading.Thread(
                target=_write_commands, args=arguments, name="commands", daemon=True
            )
            try:
                with contextlib.suppress(OSError):  # the child has ended
                    here.send(setup)
                writer.start()
                is_loaded, is_ended, error = self._read(here)
                if not is_ended:
                    error = ModelError(f"the engine's process {_end(_status(process))}")
                if is_loaded and not self._is_stopping:
                    self._deliver([Restarting(str(error))])
            finally:
                process.kill()  # it may hang; the kernel frees its memory
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(KILL_TIMEOUT)
                self.pid = None
                commands.put(None)
                if writer.ident is not None:
                    writer.join(KILL_TIMEOUT)
        if process.returncode is None:  # it may hold the device, so another child could not load
            return False, DeviceLost(f"the engine's process {process.pid} can't be ended")
        return is_loaded, error

    def _read(self, here: Wire) -> tuple[bool, bool, EngineError | None]:
        """Deliver events until the child has ended. Returns whether the child was loaded, whether
        it has reported its end or hangs, and the cause.
        """
        is_loaded = is_ended = False
        while (messages := self._receive(here, is_loaded)) is not None:
            for message in messages:
                match message:
                    case logging.LogRecord():
                        logging.getLogger(message.name).handle(message)
                        continue
                    case [Loaded()]:
                        is_loaded = True
                    case [Stopped(None)]:
                        is_ended = True
                    case [Stopped(error)]:
                        return is_loaded, True, error
                if message:
                    self._deliver(message)
        return is_loaded, is_ended, None

    def _receive(self, here: Wire, is_loaded: bool) -> list[FromChild] | None:
        """Returns None when the child has ended. A child that holds the GIL can't report that it
        hangs, so silence counts as a hang, except during a load.
        """
        messages: list[FromChild] | None = None
        try:
            while not is_loaded and messages is None:
                if self._is_stopping:  # a loading child doesn't read commands
                    return [[Stopped(Closed("the engine was closed while it was loading"))]]
                messages = here.receive(1.0)  # an empty message is a sign of life
            if messages is None:
                messages = self._hear(here)
        except (EOFError, OSError):
            return None
        if messages is None:
            seconds = f"{self._config.hang_exit:.0f} s"
            return [[Stopped(DeviceLost(f"the engine's process has been silent for {seconds}"))]]
        return messages

    def _hear(self, here: Wire) -> list[FromChild] | None:
        """Returns None if the child has been silent for too long. Raises EOFError, OSError."""
        silence_timeout, hang_exit = self._config.silence_timeout, self._config.hang_exit
        interval = interval_of(silence_timeout)
        silence, is_told = 0.0, False
        while (messages := here.receive(interval)) is None:
            silence += interval
            if silence >= silence_timeout and not is_told:
                is_told = True
                reason = f"the engine's process has been silent for {silence_timeout:.0f} s"
                self._deliver([Hanging(reason)])
            if silence >= hang_exit:
                return None
        return messages


def _start(there: Wire, gpus: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start the child in its own session, so that signals to our process group don't reach it."""
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", CODE.format(there.fileno())],
        stdin=subprocess.DEVNULL,
        pass_fds=[there.fileno()],
        start_new_session=True,
        env=os.environ | path | environment(gpus),
    )


def _write_commands(
    here: Wire, commands: queue.SimpleQueue[Command | None], process: subprocess.Popen[bytes]
) -> None:
    """Runs on its own thread, because `send` must not wait for a child that doesn't read."""
    try:
        send_all(here, commands)
    except OSError:
        pass  # the link's thread reports the end of the child
    except Exception:
        logger.exception("a command can't be sent")
        process.kill()  # the job would wait forever


def _status(process: subprocess.Popen[bytes]) -> int:
    """The status of an ending process, which is known 0.2 s before its GPU memory is freed."""
    if process.poll() is None:
        with contextlib.suppress(OSError):  # not Linux
            stat = pathlib.Path(f"/proc/{process.pid}/stat").read_text()
            if status := int(stat.rpartition(")")[2].split()[STAT_EXIT_CODE]):
                return os.waitstatus_to_exitcode(status)
    return process.wait()


def _end(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-status).name}"
    return f"was killed by signal {-status}"


# In the child


def serve(descriptor: int) -> None:
    """The child's main thread. Runs until the engine thread has ended, then exits the process."""
    # A supervisor may signal every process of a service; during a drain, this one must continue.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.set_inheritable(descriptor, False)
    faulthandler.enable()
    keep_memory_small()
    there = Wire(socket.socket(fileno=descriptor))
    config, make_backend, level = there.receive_one()
    outbox: queue.SimpleQueue[FromChild] = queue.SimpleQueue()
    logging.getLogger().addHandler(logging.handlers.QueueHandler(outbox))
    logging.getLogger("switchyard.engine").setLevel(level)
    thread = EngineThread(config, lambda: make_backend(outbox.put), outbox.put)
    interval = config.silence_timeout / PULSES
    writer = threading.Thread(target=_write_events, args=(there, outbox, interval), name="events")
    writer.start()
    threading.Thread(target=_read_commands, args=(there, thread), daemon=True).start()
    _leave(descriptor)
    thread.start()
    thread.join()
    outbox.put(None)
    writer.join()
    os._exit(0)


def _leave(descriptor: int) -> None:
    """Leave the descriptor to the threads that are still running. The kernel closes shared
    descriptors when the last thread ends, and a thread that has used a GPU takes long to end.
    """
    with contextlib.suppress(AttributeError):  # not Linux
        if ctypes.CDLL(None).unshare(CLONE_FILES) == 0:  # a container may refuse it
            os.close(descriptor)


def _read_commands(there: Wire, thread: EngineThread) -> None:
    try:
        while True:
            for command in there.receive() or ():
                thread.send(command)
    except (EOFError, OSError):
        pass  # the parent has ended
    except Exception:
        traceback.print_exc()
    os._exit(1)


def _write_events(there: Wire, outbox: queue.SimpleQueue[FromChild], interval: float) -> None:
    """Runs on its own thread, because the engine thread must not wait for the parent."""
    try:
        send_all(there, outbox, interval)
    except OSError:
        pass  # the parent has ended
    except Exception:  # an event that can't be sent ends this process
        traceback.print_exc()
        os._exit(1)
