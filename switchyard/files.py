"""Reads files that other users may write. Accepts only regular files within a size limit that
aren't being written to. Can be used on any thread.
"""

import errno
import logging
import os
import stat
import threading

logger = logging.getLogger(__name__)

SLOW = 10.0  # seconds after which a read is logged as slow
MOST = 60.0  # seconds after which a read fails


def read_file(path: str | os.PathLike[str], max_bytes: int) -> tuple[bytes, os.stat_result]:
    """Returns the bytes of a file, and its status. Raises OSError, for example for a pipe or a
    device, for more than `max_bytes`, for a file that changes while it is read, and after MOST
    seconds.
    """
    found: list[tuple[bytes, os.stat_result] | BaseException] = []

    def read() -> None:
        try:
            found.append(_read(path, max_bytes))
        except BaseException as reason:
            found.append(reason)

    thread = threading.Thread(target=read, name="read", daemon=True)  # a dead disk may block it
    try:
        thread.start()
    except RuntimeError:  # no more threads
        return _read(path, max_bytes)
    thread.join(SLOW)
    if thread.is_alive():
        logger.error("reading %s has taken more than %.0f s", os.fspath(path), SLOW)
        thread.join(MOST - SLOW)
    if not found:
        raise OSError(errno.ETIMEDOUT, f"it can't be read within {MOST:.0f} s", os.fspath(path))
    [answer] = found
    if isinstance(answer, BaseException):
        raise answer
    return answer


def signature(status: os.stat_result) -> tuple[int, int, int]:
    """A value that changes when the file changes."""
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read(path: str | os.PathLike[str], max_bytes: int) -> tuple[bytes, os.stat_result]:
    # Without O_NONBLOCK, opening a pipe waits for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
        if status.st_size > max_bytes:
            raise OSError(errno.EFBIG, f"it has more than {max_bytes} bytes", os.fspath(path))
        data = file.read(status.st_size + 1)
        after = os.fstat(descriptor)
    if len(data) != status.st_size or signature(after) != signature(status):
        raise OSError(errno.EAGAIN, "it changed while it was read", os.fspath(path))
    return data, status
