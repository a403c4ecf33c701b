"""Ends a host application's wait for its server at a deadline, after a long silence, or when the
application's own client leaves.
"""

import math
import time
from typing import Any

from switchyard import engine
from switchyard.app.config import Settings
from switchyard.app.delivery import submit as generation
from switchyard.app.delivery.reader import MEANINGS
from switchyard.app.delivery.watch import LOOK, WatchedClient
from switchyard.app.exceptions import TimedOut
from switchyard.app.host.worker import is_ending

SLACK = 5.0  # seconds added to a deadline, so that the server can report it first
SILENCE = 60.0  # seconds; the minimum limit on a stream's silence, which heartbeats interrupt


def check_silence(silent: float, settings: Settings) -> None:
    """Raises engine.Closed if a stream with heartbeats has been silent for too long. `silent`:
    seconds without a byte.
    """
    if silent > max(SILENCE, 4 * settings.heartbeat):
        raise engine.Closed(f"the server has sent nothing for {silent:.0f} seconds")


class Wait:
    """One request's wait, measured from the beginning of the request."""

    def __init__(self, settings: Settings, timeout: Any) -> None:
        """`timeout`: the request's parameter, unchecked."""
        self._begun = time.monotonic()
        self._asked = timeout if isinstance(timeout, int | float) and timeout > 0 else None
        self._most = self._asked or settings.total_timeout  # 0: no limit
        limits = [limit for limit in (settings.queue_timeout, settings.total_timeout) if limit]
        self._patience = self._asked or min(limits, default=math.inf)
        self._settings = settings
        self._client = WatchedClient(generation.environ(), serves_half_closed=False)

    @property
    def left(self) -> float:
        """Seconds that the request may still wait for room on the server."""
        return self._patience - (time.monotonic() - self._begun)

    @property
    def timeout(self) -> dict[str, float]:
        """The remaining part of the request's own `timeout`, as a parameter for the server."""
        if self._asked is None:
            return {}
        return {"timeout": max(self._asked - (time.monotonic() - self._begun), 0.001)}

    def look(self, silent: float) -> None:
        """Checks the client, the deadline and the length of the silence. `silent`: seconds without
        a byte from the server.

        Raises ClientGone, TimedOut, engine.Closed.
        """
        self._client.check()
        if self._most and time.monotonic() - self._begun > self._most + SLACK:
            code = "total_timeout"
            raise TimedOut(f"{MEANINGS[code]} within {self._most:g} seconds", code)
        check_silence(silent, self._settings)

    def rest(self, seconds: float) -> None:
        """Waits, and checks the client. Raises ClientGone, or engine.Draining if the host
        application is shutting down.
        """
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._client.check()
            if is_ending():
                raise engine.Draining(
                    "the server is shutting down, and this request has not begun yet"
                )
            time.sleep(min(left, LOOK))
