"""The WSGI server's request threads: their number, and hooks that report their state."""

from collections.abc import Callable


class Threads:
    """Hooks of the WSGI server, which sets them after it has loaded the application.

    `count` returns the numbers of busy request threads and of all request threads; `count` is None
    if the server can't report them. `detach` runs on a request thread, and takes the current
    request's connection from the server. From then on the server neither reads nor closes the
    connection, until any thread calls the function that `detach` returned. `max_detached` limits
    the number of detached connections. `on_prepared` is called on a request thread once the current
    request has submitted its jobs, or begins to wait. The server may then begin another request.
    `on_prepared` may be called more than once.
    """

    def __init__(self) -> None:
        self.count: Callable[[], tuple[int, int]] | None = None
        self.detach: Callable[[], Callable[[], None]] | None = None
        self.max_detached = 0
        self.on_prepared: Callable[[], None] | None = None

    def prepared(self) -> None:
        if self.on_prepared is not None:
            self.on_prepared()
