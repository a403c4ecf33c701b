"""Controls how this process allocates memory and returns it to the system."""

import contextlib
import ctypes
import os

# malloc.h: M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, the latter two in bytes.
MALLOC = {-8: 1, -3: 1 << 20, -1: 4 << 20}


def give_memory_back() -> None:
    """Return freed memory to the system, even from the middle of the heap. This blocks malloc in
    all threads for a few milliseconds per 100 MiB.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def keep_memory_small() -> None:
    """Keep glibc from fragmenting memory. By default, glibc allocates large tensors in up to eight
    heaps per core, which fragment and never shrink, so the process would grow steadily. With these
    options, all threads share one heap, and large blocks are mapped one by one and returned when
    freed.

    Call this function before other threads start.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return  # the operator has chosen
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in MALLOC.items():
            mallopt(option, value)
