"""Closes several engines at the same time."""

import threading
from collections.abc import Sequence

from switchyard.engine.engine import Engine


def close_all(engines: Sequence[Engine], drain: float, timeout: float | None) -> bool:
    """Closes all `engines` as `Engine.close` does. Returns whether all engines were closed in
    time.
    """
    results: list[bool] = []
    first, *others = engines

    def close(engine: Engine) -> None:
        results.append(engine.close(drain, timeout))

    threads = [
        threading.Thread(target=close, args=(one,), name=f"close-{one.config.name}")
        for one in others
    ]
    for thread in threads:
        thread.start()
    close(first)  # on this thread: the system may have none left
    for thread in threads:
        thread.join()
    return all(results)
