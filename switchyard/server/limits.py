"""What the operating system lets this process have."""

import contextlib
import resource

OWN_FILES = 256  # of the model, the logs, the libraries, the devices


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
