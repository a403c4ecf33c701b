"""Which engines failed to start on this machine, kept in a file a model. A machine that fails each
time would otherwise load a model again and again, while Serve looks for a place.
"""

import contextlib
import json
import os
import time
from urllib.parse import quote

MOST = 3  # failures in a row, after which no engine is started for `PAUSE`
PAUSE = 300.0  # seconds


class Failures:
    def __init__(self, folder: str, name: str, cause: str) -> None:
        """`name`: of the model. `cause`: what the engines were started for; earlier failures are
        void if it differs.
        """
        self._path = f"{folder}/failed-{quote(name, safe='')}.json"
        self._cause = cause

    def refusal(self) -> str:
        """Why no engine may be started now; empty if one may."""
        number, last, reason = self._read()
        left = last + PAUSE - time.time()
        if number < MOST or left <= 0:
            return ""
        return f"failed {number} times, the next try is in {left:.0f} s: {reason}"

    def note(self, reason: str) -> None:
        number, *_ = self._read()
        fresh = f"{self._path}.{os.getpid()}"
        with open(fresh, "w") as file:
            json.dump([self._cause, number + 1, time.time(), reason], file)
        os.replace(fresh, self._path)

    def clear(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def _read(self) -> tuple[int, float, str]:
        """How many there were in a row, when the last one was, and why."""
        try:
            with open(self._path) as file:
                cause, number, last, reason = json.load(file)
        except (OSError, ValueError):
            return 0, 0.0, ""
        return (number, last, reason) if cause == self._cause else (0, 0.0, "")
