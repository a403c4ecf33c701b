"""Request threads, of a server that tells how many it has, and lets connections do without."""

from collections.abc import Callable


class Threads:
    """What the server sets, once it has loaded the application.

    `count`: busy ones, and all; None where the server doesn't tell. `detach`: on a request thread,
    takes the current request's connection from the server: neither reads it nor closes it behind
    the answer, until what is returned is called, by any thread. `max_detached`: how many there may
    be at a time.
    """

    def __init__(self) -> None:
        self.count: Callable[[], tuple[int, int]] | None = None
        self.detach: Callable[[], Callable[[], None]] | None = None
        self.max_detached = 0
