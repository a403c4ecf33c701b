"""Claims of processes on models. If two processes of one user load the same model, a warning is
logged.
"""

import contextlib
import fcntl
import hashlib
import logging
import os

logger = logging.getLogger(__name__)


class ModelClaim:
    """A process's claim on a model: a locked file with the process's id."""

    def __init__(self, path: str) -> None:
        """`path`: the model's directory. Logs a warning if another process holds the claim."""
        self._descriptor = -1
        with contextlib.suppress(OSError):  # if the file can't be used, there is no warning
            self._descriptor = _open(_file_of(path))
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._warn(path)
                return
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _warn(self, path: str) -> None:
        other = os.pread(self._descriptor, 20, 0).decode(errors="replace")
        self.release()
        if other != str(os.getpid()):  # otherwise another application in this process holds it
            logger.warning(
                "process %s of this user also serves %s, and both have loaded it: one process"
                " with threads is enough (docs/flask.md)",
                other or "?",
                path,
            )


def _file_of(path: str) -> str:
    directory = os.environ.get("XDG_RUNTIME_DIR") or "/tmp"
    name = hashlib.sha256(os.path.realpath(path).encode()).hexdigest()[:16]
    return os.path.join(directory, f"switchyard-{os.getuid()}-{name}.lock")


def _open(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
