"""Request threads, of a server that tells how many it has."""

from collections.abc import Callable


class Threads:
    """`count`: busy ones, and all; None where the server doesn't tell."""

    def __init__(self) -> None:
        self.count: Callable[[], tuple[int, int]] | None = None
