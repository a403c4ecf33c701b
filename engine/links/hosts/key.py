"""The key of shared engines. Anyone who has the key can run code in the engines. During a change of
keys, the file has two, one per line. The first is used, and both are accepted.
"""

import logging
from collections.abc import Callable

from switchyard.engine.errors import ModelError
from switchyard.files import read_file

logger = logging.getLogger(__name__)

MIN_KEY, MAX_KEY = 32, 4096  # bytes
Key = bytes | Callable[[], bytes]  # the file's content, or a function that reads it again
OTHERS = 0o007  # permission bits that must be off


def read_key(path: str | None) -> bytes:
    """Returns the key, which is empty without a path. Raises ModelError."""
    if path is None:
        return b""
    try:
        data, status = read_file(path, MAX_KEY)
    except OSError as reason:
        raise ModelError(f"engine_key_file {path}: {reason.strerror}", "engine_key_file") from None
    key = data.strip()
    if status.st_mode & OTHERS:
        raise ModelError(
            f"engine_key_file {path} is open to others: chmod o= {path}", "engine_key_file"
        )
    if len(key) < MIN_KEY:
        raise ModelError(
            f"engine_key_file {path} has {len(key)} bytes, but must have at least {MIN_KEY}",
            "engine_key_file",
        )
    return key


def keys_in(key: bytes) -> list[bytes]:
    """The keys in a file, which has one key, or two keys on separate lines. Without a file, there
    is one empty key.
    """
    lines = key.splitlines()
    is_pair = key.isascii() and len(lines) == 2 and min(map(len, lines)) >= MIN_KEY
    return lines if is_pair else [key]


def current(key: Key) -> bytes:
    return key if isinstance(key, bytes) else key()


class KeyFile:
    """Reads the file for each connection, so that no process has to restart when the key
    changes.
    """

    def __init__(self, path: str | None) -> None:
        """Raises ModelError."""
        self._path = path
        self._key = read_key(path)
        self._fault = ""

    def __call__(self) -> bytes:
        """Returns the key. If the file can no longer be read, returns the key that was read
        last.
        """
        fault = ""
        try:
            self._key = read_key(self._path)
        except ModelError as error:
            fault = str(error)
        if fault and fault != self._fault:
            logger.error("the key remains unchanged: %s", fault)
        self._fault = fault
        return self._key
