"""Seals for messages between two ends that share a key."""

import hmac
import struct
from typing import NamedTuple

SIZE = 32  # bytes of a seal
NUMBER = struct.Struct("!Q")


class Seal:
    """HMAC-SHA256 over the messages in one direction, each with its number, so that no message can
    be added, changed, repeated or left out. Not thread-safe.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def of(self, message: bytes | memoryview) -> bytes:
        """The seal of the next message."""
        number = NUMBER.pack(self._number)
        self._number += 1
        return hmac.digest(self._key, number + message, "sha256")

    def fits(self, seal: bytes | memoryview, message: bytes | memoryview) -> bool:
        """Whether `message` is the next message that the other end has sent."""
        return hmac.compare_digest(seal, self.of(message))


class Seals(NamedTuple):
    """The seals for the two directions of a connection, as one end sees them."""

    sent: Seal
    received: Seal
