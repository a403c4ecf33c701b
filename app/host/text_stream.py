"""A completion in pieces, local or remote. One thread reads it; any thread may close it."""

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from switchyard import engine


@dataclass(frozen=True, slots=True)
class Result:
    """A whole completion. `finish_reason`: "stop", "length" or "cancelled"."""

    text: str
    finish_reason: engine.FinishReason
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a completion."""

    finish_reason: engine.FinishReason
    prompt_tokens: int
    completion_tokens: int


class Source(Protocol):
    """The source of a completion's pieces."""

    def read(self) -> tuple[Sequence[str], Ending | Exception | None]:
        """Waits for more pieces or for the end. The end may come as an exception, even after some
        pieces.

        Raises the same exceptions as `Switchyard.generate`.
        """

    def close(self) -> None:
        """Cancels the rest of the generation. Idempotent."""

    def drop(self) -> None:
        """Like `close`, for use in finalizers. A finalizer may run during any code, so this method
        takes no lock. A thread other than the reader may also call it; a running `read` then soon
        returns or raises an exception.
        """


class TextStream(Iterator[str]):
    """An iterator over the pieces of a completion.

    Closing the iterator, or dropping the last reference to it, cancels the rest of the generation.
    """

    def __init__(self, source: Source) -> None:
        self.result: Result | None = None  # set once the last piece has been taken
        self._source = source
        self._pieces: list[str] = []  # all pieces so far, taken or not
        self._num_taken = 0
        self._is_reading = False
        self._ending: Ending | Exception | None = None
        self._finalizer = weakref.finalize(self, source.drop)
        self._finalizer.atexit = False

    def __next__(self) -> str:
        """The next piece. Raises the same exceptions as `Switchyard.generate`."""
        self.wait()
        if not self._finalizer.alive:
            raise StopIteration  # the text has ended or was closed
        self._num_taken += 1
        return self._pieces[self._num_taken - 1]

    def wait(self) -> None:
        """Waits for the next piece, or the end. Raises the same exceptions as
        `Switchyard.generate`.
        """
        while self._num_taken == len(self._pieces) and self._finalizer.alive:
            ending = self._ending
            if ending is None:
                self._read()
            else:
                self._end(ending)

    def close(self) -> None:
        """Ends the stream. A thread that is waiting for a piece receives none. Idempotent."""
        if self._finalizer.detach() is not None:
            (self._source.drop if self._is_reading else self._source.close)()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self) -> None:
        self._is_reading = True
        try:
            pieces, self._ending = self._source.read()
        except BaseException as error:
            if isinstance(error, Exception) and not self._finalizer.alive:
                return  # another thread has closed it
            self._is_reading = False
            self.close()
            raise
        self._is_reading = False
        self._pieces += [piece for piece in pieces if piece]

    def _end(self, ending: Ending | Exception) -> None:
        self.close()
        if isinstance(ending, Exception):
            raise ending
        self.result = Result(
            "".join(self._pieces),
            ending.finish_reason,
            ending.prompt_tokens,
            ending.completion_tokens,
        )
