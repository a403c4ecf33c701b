"""An engine's process, what becomes of it, and what a job's seed does to it."""

import contextlib
import ctypes
import enum
import logging
import os
import pathlib
import signal
import tempfile
import threading
import time

from switchyard import engine
from switchyard.engine import errors
from switchyard.engine.messages import Chunk, Finished, Started
from tests.engine.reading import take_all, wait_until
from tests.scripted import count, job, ticking


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
    """The number of heaps of the C library in this process."""
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    with tempfile.NamedTemporaryFile() as file:
        stream = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
        libc.malloc_info(0, stream)
        libc.fclose(stream)
        return file.read().count(b"<heap nr=")


def seeded(seed, identifier="a", **more):
    return job(identifier, 3, sampling=engine.Sampling(seed=seed), **more)


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
    wait_until(model, lambda: model.error is None)
    events = take_all(model.submit([job("after", 2)]))
    assert [type(event) for event in events] == [Started, Chunk, Chunk, Finished]
