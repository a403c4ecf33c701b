"""Panics of libraries written in Rust. They aren't of type `Exception`, so few handlers catch them.
Any thread.
"""

from types import TracebackType


class panics_as:  # of use as `contextlib.suppress` is
    """A context in which a panic raises `kind(message, *more)` instead."""

    __slots__ = ("_arguments", "_kind")

    def __init__(self, kind: type[Exception], message: str, *more: str) -> None:
        self._kind = kind
        self._arguments = (message, *more)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Each library has a panic class of its own, with this name, that can't be imported.
        if kind is not None and kind.__module__ == "pyo3_runtime":
            raise self._kind(*self._arguments) from error
