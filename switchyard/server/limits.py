"""What the operating system lets this process have."""

import contextlib
import os
import pathlib
import resource
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

OWN_FILES = 256  # of the model, the logs, the libraries, the devices
OWN_THREADS = 16 + 2 * (os.cpu_count() or 1)  # of the model, the libraries, the server itself
CGROUPS = pathlib.Path("/sys/fs/cgroup")


def open_standard_streams() -> None:
    """Those that are closed, to nowhere: libraries write to them, or to what has their number. The
    engine's process, if there is one, inherits them.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None and os.open(os.devnull, os.O_RDWR) == number:
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))


def check_temporary_directory(path: str | None) -> None:
    """`path` or the system's. Raises OSError."""
    with tempfile.TemporaryFile(dir=path) as file:
        file.write(b"x")


def raise_open_files() -> int:
    """Let this process and its children have as many files open as it may: the soft limit, made
    for programs that use `select`, is a hundredth of what is allowed. Returns the new limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # a system that allows none so high
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft


def max_connections(num_threads: int, num_files: int) -> int:
    """How many the worker may hold. Each thread may have another file open for its request."""
    if num_files == resource.RLIM_INFINITY:
        return 10 * num_threads
    return min(10 * num_threads, num_files - OWN_FILES - num_threads)


def start_threads(pool: ThreadPoolExecutor, num_threads: int) -> None:
    """All that the pool may have. Raises RuntimeError where there is no room for them, and for the
    process's own beside them.
    """
    may_end = threading.Event()
    others = [threading.Thread(target=may_end.wait) for _ in range(OWN_THREADS)]
    try:
        for _ in range(num_threads):
            pool.submit(may_end.wait)  # as long as it waits, the next needs another thread
        for thread in others:
            thread.start()
    finally:
        may_end.set()
    for thread in others:
        thread.join()


def threads_allowed() -> str:
    """By the limits that there are, in words. Those of memory come on top."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    user = "no limit" if soft == resource.RLIM_INFINITY else f"{soft} of this user"
    group = min(_pids_max(), default=None)
    return f"{user} (ulimit -u), {group or 'no limit'} (pids.max of the control group)"


def _pids_max() -> list[int]:
    """Of the control groups that this process is in, down from the outermost."""
    limits = []
    with contextlib.suppress(OSError, ValueError):  # not Linux
        for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "pids"):
                inner = CGROUPS / controllers / path.lstrip("/")
                for folder in (inner, *inner.parents):
                    with contextlib.suppress(OSError, ValueError):  # "max"
                        limits.append(int((folder / "pids.max").read_text()))
    return limits
