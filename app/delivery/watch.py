"""A look at the client from time to time, while something else is waited for. Request threads."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from switchyard.app.exceptions import ClientGone
from switchyard.app.http.client import Client, Presence

LOOK = 0.25  # seconds from one look at the client to the next
LOOK_CLOSELY = 0.1  # once it may have left

Item = TypeVar("Item")


class WatchedClient(Client):
    """One client, by the thread that answers it."""

    __slots__ = ("_next_look", "_presence", "_serves_half_closed")

    def __init__(self, environ: Mapping[str, Any], serves_half_closed: bool) -> None:
        """`serves_half_closed`: whether there are writes that would tell a client that has left
        from one that only sends nothing more; else the latter counts as gone, too.
        """
        super().__init__(environ)
        self._serves_half_closed = serves_half_closed
        self._presence: Presence = "there"
        self._next_look = -math.inf

    @property
    def is_half_closed(self) -> bool:
        """Whether the client may have left, which only a write to it can tell."""
        return self._presence == "half-closed"

    def check(self) -> None:
        """Raises ClientGone."""
        self._check(time.monotonic())

    def wait(
        self,
        take: Callable[[float], Sequence[Item]],
        is_done: Callable[[], bool],
        timeout: float = math.inf,
    ) -> Sequence[Item]:
        """What `take`, which waits for so many seconds at the most, brings. Nothing after `timeout`
        seconds, once it `is_done`, or when the client becomes half-closed. Raises ClientGone.
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
        """Whether the client has become half-closed since the last time."""
        before, self._presence = self._presence, self.look()
        if self._presence == "gone" or (self.is_half_closed and not self._serves_half_closed):
            raise ClientGone
        self._next_look = now + (LOOK_CLOSELY if self.is_half_closed else LOOK)
        return self._presence != before
