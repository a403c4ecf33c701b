"""Waits that check the client several times a second. Used on request threads and the sender's
thread.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from switchyard.app.exceptions import ClientGone
from switchyard.app.http.client import Client, Presence

LOOK = 0.25  # seconds between two checks of a client
LOOK_CLOSELY = 0.1  # seconds between two checks of a half-closed client

Item = TypeVar("Item")


class WatchedClient(Client):
    """A client that is checked regularly. Used by the thread that responds to the client."""

    __slots__ = ("_next_look", "_presence", "_serves_half_closed")

    def __init__(self, environ: Mapping[str, Any], serves_half_closed: bool) -> None:
        """`serves_half_closed`: whether to serve a half-closed client, because a write will show
        whether the client has left. Otherwise a half-closed client counts as gone.
        """
        super().__init__(environ)
        self._serves_half_closed = serves_half_closed
        self._presence: Presence = "there"
        self._next_look = -math.inf

    @property
    def is_half_closed(self) -> bool:
        """Whether the client may have left, which only a write can show."""
        return self._presence == "half-closed"

    def check(self) -> None:
        """Checks the client now. Raises ClientGone."""
        self._check(time.monotonic())

    def wait(
        self,
        take: Callable[[float], Sequence[Item]],
        is_done: Callable[[], bool],
        timeout: float = math.inf,
    ) -> Sequence[Item]:
        """Waits for items from `take`, and checks the client while waiting. Raises ClientGone.

        `take` waits for at most the number of seconds passed to it. Returns an empty sequence after
        `timeout` seconds, once `is_done` returns True, or when the client becomes half-closed.
        """
        end = time.monotonic() + timeout
        while True:
            now = time.monotonic()
            if now >= self._next_look and self._check(now):
                end = now
            items = take(max(min(end, self._next_look) - now, 0))
            if items or is_done() or now >= end:
                return items

    def _check(self, now: float) -> bool:
        """Checks the client. Returns whether it has become half-closed since the last check."""
        before, self._presence = self._presence, self.look()
        if self._presence == "gone" or (self.is_half_closed and not self._serves_half_closed):
            raise ClientGone
        self._next_look = now + (LOOK_CLOSELY if self.is_half_closed else LOOK)
        return self._presence != before
