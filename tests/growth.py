"""Whether work grows in proportion: noise only adds time, so the least of many tries counts."""

import time

ATTEMPTS = 12


def assert_within(factor, measured, reference, slack=0.0):
    """That `measured()` takes at most `factor` times as long as `reference()`, and `slack`.

    Each is called up to ATTEMPTS times, in turns. What is slower by its nature is so each time.

    Args:
        slack: Seconds.
    """
    most, base = float("inf"), float("inf")
    for _ in range(ATTEMPTS):
        base = min(base, thread_seconds(reference))
        most = min(most, thread_seconds(measured))
        if most < factor * base + slack:
            return
    raise AssertionError(f"{most:.4f} s against {base:.4f} s")


def thread_seconds(work):
    """Seconds of this thread, not of others on a busy machine."""
    begin = time.thread_time()
    work()
    return time.thread_time() - begin
