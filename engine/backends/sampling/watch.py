"""Whether a text has come in a completion."""


class Watch:
    def __init__(self, text: str) -> None:
        self._text = text.encode()
        self._tail = b""  # as much of the end as may be part of the text
        self.has_come = not text

    def add(self, piece: bytes) -> None:
        """The bytes of one more token."""
        seen = self._tail + piece
        self.has_come = self.has_come or self._text in seen
        self._tail = seen[len(seen) - min(len(self._text) - 1, len(seen)) :] if self._text else b""

    @property
    def begun(self) -> list[int]:
        """How much of the text may have come: the lengths, 0 among them, of its beginnings that
        the completion ends in.
        """
        lengths = range(len(self._tail) + 1)
        return [length for length in lengths if self._tail.endswith(self._text[:length])]
