"""Whether the server that runs a host application ends."""

import signal


def is_ending() -> bool:
    """gunicorn's worker takes no more requests, and waits for those that it has. It is known by the
    handler of SIGTERM, a method of it. Elsewhere SIGTERM ends the process, and nobody need ask.
    """
    worker = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(worker, "alive", True) is False
