"""The operating system's limits for this process."""

import contextlib
import os
import pathlib
import resource
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

OWN_FILES = 256  # for model, logs, libraries, devices
OWN_THREADS = 16 + 2 * (os.cpu_count() or 1)  # for model, libraries, the server itself
CGROUPS = pathlib.Path("/sys/fs/cgroup")


def open_standard_streams() -> None:
    """Opens closed standard streams on /dev/null, because libraries write to the streams'
    descriptors, even if one of these now belongs to another file. An engine's process inherits the
    streams.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None and os.open(os.devnull, os.O_RDWR) == number:
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))


def check_temporary_directory(path: str | None) -> None:
    """Checks `path`, or the system's temporary directory if there is no path. Raises OSError."""
    with tempfile.TemporaryFile(dir=path) as file:
        file.write(b"x")


def raise_open_files() -> int:
    """Raises the soft limit on open files to the hard limit, for this process and its children. The
    default soft limit, which is meant for `select`, is a hundredth of the hard limit. Returns the
    new limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # the system allows less
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft


def max_connections(num_threads: int, num_files: int) -> int:
    """The maximum number of the worker's connections. Each thread may have another file open for
    its request.
    """
    if num_files == resource.RLIM_INFINITY:
        return 10 * num_threads
    return min(10 * num_threads, num_files - OWN_FILES - num_threads)


def start_threads(pool: ThreadPoolExecutor, num_threads: int) -> None:
    """Starts all threads in the pool. Raises RuntimeError if the system doesn't allow them in
    addition to the process's other threads.
    """
    may_end = threading.Event()
    others = [threading.Thread(target=may_end.wait) for _ in range(OWN_THREADS)]
    try:
        for _ in range(num_threads):
            pool.submit(may_end.wait)  # while it waits, the next task needs another thread
        for thread in others:
            thread.start()
    finally:
        may_end.set()
    for thread in others:
        thread.join()


def threads_allowed() -> str:
    """Describes the limits on the number of threads. Memory is another limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    user = "no limit" if soft == resource.RLIM_INFINITY else f"{soft} for this user"
    group = min(_pids_max(), default=None)
    return f"{user} (ulimit -u), {group or 'no limit'} (pids.max of the control group)"


def _pids_max() -> list[int]:
    """The limits of this process's control groups, from the outermost."""
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
