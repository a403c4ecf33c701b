"""Records which engines failed to start on a machine. Without this record, an engine that always
fails would load its model again and again, and Serve would report no failure while the model's
other engines run.
"""

import json
import time
from typing import Protocol

MOST = 3  # failures in a row, after which no engine is started for `PAUSE`
PAUSE = 300.0  # seconds


class Store(Protocol):
    """A store that all machines share. `get` returns an empty string for a key without a value."""

    def get(self, key: str) -> str: ...
    def put(self, key: str, value: str) -> None: ...


class Failures:
    def __init__(self, store: Store, name: str, address: str, cause: str) -> None:
        """`name`: the model's name. `address`: the machine's address. `cause`: the reason for
        starting the engines; failures with another cause don't count.
        """
        self._store = store
        self._key = f"switchyard-failures {name} {address}"
        self._cause = cause

    def line(self) -> str:
        """Why the last engine failed, and when another may be started, or an empty string if none
        has failed.
        """
        number, last, reason = self._read()
        if not self.is_pause:
            return reason
        then = time.strftime("%H:%M:%S", time.localtime(last + PAUSE))
        return f"failed {number} times, next try at {then}: {reason}"

    @property
    def is_pause(self) -> bool:
        """Whether no engine may be started now."""
        number, last, _ = self._read()
        return number >= MOST and time.time() < last + PAUSE

    def note(self, reason: str) -> None:
        number, *_ = self._read()
        self._store.put(self._key, json.dumps([self._cause, number + 1, time.time(), reason]))

    def clear(self) -> None:
        self._store.put(self._key, "")

    def _read(self) -> tuple[int, float, str]:
        """The number of failures in a row, the time of the last failure, and its reason."""
        cause, number, last, reason = json.loads(self._store.get(self._key) or '["", 0, 0.0, ""]')
        return (number, last, reason) if cause == self._cause else (0, 0.0, "")
