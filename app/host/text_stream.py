"""A completion as it comes, wherever it is generated. Any one thread."""

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from switchyard import engine


@dataclass(frozen=True, slots=True)
class Result:
    """A completion. `finish_reason`: "stop", "length" or "cancelled"."""

    text: str
    finish_reason: engine.FinishReason
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Ending:
    """How a completion has ended."""

    finish_reason: engine.FinishReason
    prompt_tokens: int
    completion_tokens: int


class Source(Protocol):
    """Where the pieces of a completion come from."""

    def read(self) -> tuple[Sequence[str], Ending | None]:
        """Wait for more pieces, or for the end. Raises what `Switchyard.generate` does."""

    def close(self) -> None:
        """Cancel what has not been generated. Harmless when called again."""

    def drop(self) -> None:
        """The same, in whatever another thread is doing: it takes no lock."""


class TextStream(Iterator[str]):
    """Pieces of a completion as they come. To close it, or to drop it, cancels what has not been
    generated.
    """

    def __init__(self, source: Source) -> None:
        self.result: Result | None = None  # once the last piece has been taken
        self._source = source
        self._pieces: list[str] = []  # taken so far, and those that come next
        self._num_taken = 0
        self._ending: Ending | None = None
        self._finalizer = weakref.finalize(self, source.drop)
        self._finalizer.atexit = False

    def __next__(self) -> str:
        """Raises what `Switchyard.generate` does while it waits."""
        while True:
            if self._num_taken < len(self._pieces):
                self._num_taken += 1
                return self._pieces[self._num_taken - 1]
            if self.result is not None:
                raise StopIteration
            if self._ending is not None:
                self._end(self._ending)
            elif self._finalizer.alive:
                self._read()
            else:
                raise StopIteration  # it was closed

    def close(self) -> None:
        if self._finalizer.detach() is not None:
            self._source.close()
            del self._pieces[self._num_taken :]

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
        try:
            pieces, self._ending = self._source.read()
        except BaseException:
            self.close()
            raise
        self._pieces += [piece for piece in pieces if piece]

    def _end(self, ending: Ending) -> None:
        self.result = Result(
            "".join(self._pieces),
            ending.finish_reason,
            ending.prompt_tokens,
            ending.completion_tokens,
        )
        self.close()
