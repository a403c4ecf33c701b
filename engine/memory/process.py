"""How this process gets its memory, and gives it back."""

import contextlib
import ctypes
import os

# malloc.h: M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, the latter two in bytes.
MALLOC = {-8: 1, -3: 1 << 20, -1: 4 << 20}


def give_memory_back() -> None:
    """What has been freed in the middle of the heap, too. Holds all others' malloc up, for some
    milliseconds a hundred MiB.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def keep_memory_small() -> None:
    """Large tensors come and go. glibc would serve them from heaps, up to eight a core, that fall
    into pieces and never shrink: a process that needs as much as before, and holds more by the
    hour. So one heap for all threads; what is large is mapped by itself and returned when freed.
    To be called before there are threads.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return  # the operator's own choice
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in MALLOC.items():
            mallopt(option, value)
