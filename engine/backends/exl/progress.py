"""The progress of loading a model, reported over HTTP and shown to operators. Used on the engine
thread.
"""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import Progress as Bar

logger = logging.getLogger(__name__)

LOG_EVERY = 5.0  # seconds
WEIGHTS = 0.8  # progress once the weights are read
GENERATOR = 0.9  # progress once the cache and the generator are made

Callback = Callable[[int, int], None]  # called with the number of loaded modules and the total


class Progress:
    """Draws a progress bar if stderr is a terminal; otherwise logs the progress from time to
    time.
    """

    def __init__(self, name: str, tell: Callable[[float], None] | None = None) -> None:
        """`tell` is called with the progress, from 0 to `GENERATOR`, until the load ends."""
        self._name = name
        self._tell = tell
        self._told_at = time.monotonic()
        self._exit = contextlib.ExitStack()
        self._bar: Bar | None = None

    def __enter__(self) -> "Progress":
        if sys.stderr.isatty():
            # Refreshed by hand: automatic refresh would start a thread.
            bar = Bar(console=Console(stderr=True), auto_refresh=False, transient=True)
            self._bar = self._exit.enter_context(bar)
            bar.add_task(f"loading {self._name}", total=1.0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._exit.close()
        self._bar = None

    def __call__(self, done: int, total: int) -> None:
        """Note the number of loaded modules and the total number of modules."""
        share = done / total
        self.tell(WEIGHTS * share)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=share, refresh=True)
        elif (now := time.monotonic()) - self._told_at >= LOG_EVERY:
            self._told_at = now
            logger.info("model %s: %.0f%% loaded", self._name, 100 * share)

    def tell(self, share: float) -> None:
        if self._tell is not None:
            self._tell(share)


def parts(progress: Callback, sizes: Sequence[int]) -> list[Callback]:
    """Returns a callback for each of several models, given the number of modules in each. Each
    callback adds the modules of earlier models to its own count.
    """

    def part(first: int) -> Callback:
        return lambda done, _: progress(first + done, sum(sizes))

    return [part(sum(sizes[:i])) for i in range(len(sizes))]
