"""Panics in libraries written in Rust. These aren't of type `Exception`, so few handlers catch
them. Can be used on any thread.
"""

from types import TracebackType


class panics_as:  # named and used like `contextlib.suppress`
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
        # Each library has its own panic class in a module of this name, which can't be imported.
        if kind is not None and kind.__module__ == "pyo3_runtime":
            raise self._kind(*self._arguments) from error
