"""Calls to a backend, whose libraries may raise any exception. Used only on the engine thread."""

import logging
from collections.abc import Callable

from switchyard.engine.backends.base import Backend
from switchyard.engine.errors import EngineError, Failure, JobFailed, ModelError, Rejected
from switchyard.engine.job import Job
from switchyard.engine.messages import ModelInfo

logger = logging.getLogger(__name__)


def open_backend(make_backend: Callable[[], Backend]) -> tuple[Backend, ModelInfo]:
    """Raises ModelError."""
    try:
        backend = make_backend()
        return backend, backend.open()
    except ModelError:
        raise
    except BaseException as reason:  # libraries raise all kinds of errors for a bad model directory
        logger.debug("load", exc_info=True)
        raise ModelError(f"the model can't be loaded: {type(reason).__name__}: {reason}") from None


def enqueue(backend: Backend, job: Job) -> EngineError | None:
    """Returns why the job can't start, or None if it can. Raises ModelError."""
    try:
        backend.enqueue(job)
    except ModelError:
        raise
    except (Rejected, Failure) as reason:
        return reason
    except BaseException as reason:
        logger.exception("job %s can't be set up", job.identifier)
        return JobFailed(cause_of(reason))
    return None


def recover(how: Callable[[], None]) -> str | None:
    """Returns why the recovery failed, or None if it succeeded. Raises ModelError."""
    logger.warning("recovery: %s", how.__name__)
    try:
        how()
    except ModelError:
        raise
    except BaseException as reason:
        logger.exception("recovery: %s failed", how.__name__)
        return cause_of(reason)
    return None


def cause_of(reason: BaseException) -> str:
    return f"{type(reason).__name__}: {reason}"
