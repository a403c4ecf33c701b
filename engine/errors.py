"""The errors of the engine, grouped by what is at fault.

EngineError
├── ModelError              the files, device or memory prevent loading or recovering a model
│   ├── NoRoom              there is not enough memory; the message has the figures
│   ├── LoadUnderWay        the model is already being loaded, unloaded or swapped
│   ├── NotOurs             servers share the engine, and none of them may load or end it
│   └── DeviceLost          no call to the device can succeed in this process any longer
├── ModelNotFound           no model has that name
├── Rejected                the job is at fault; the same job would fail again
│   ├── InvalidJob          a parameter has a value that can't be used
│   │   └── ConstraintTooSlow   the job's constraint takes too long per token
│   └── PromptTooLong       the prompt and new tokens exceed the context or the cache
├── Refused                 not now; the same job may be accepted later
│   ├── Full                the engine holds as many jobs as it can
│   ├── Loading             the model is not warm yet
│   ├── Unloaded            only the operator can load the model
│   ├── Stalled             an iteration has not returned; it may still do so
│   ├── Draining            the engine finishes its jobs and accepts no new jobs
│   └── Dead                the model failed to load, or the engine thread has ended
└── Failure                 the job had been accepted
    ├── JobFailed           only this job failed, in its sampler, settings or prefill
    ├── BatchFailed         an iteration failed, and every active job with it
    │   └── OutOfMemory     there was no memory for the iteration, or for a job's prompt
    └── Closed              the engine was closed before the job ended
"""

from typing import TypeVar

from switchyard.errors import SwitchyardError


class EngineError(SwitchyardError):
    """The root of the engine's errors. `param`: the engine's name for the invalid parameter, if
    there is one.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ModelError(EngineError):
    pass


class NoRoom(ModelError):
    pass


class LoadUnderWay(ModelError):
    pass


class NotOurs(ModelError):
    pass


class DeviceLost(ModelError):
    pass


class ModelNotFound(EngineError):
    pass


class Rejected(EngineError):
    pass


class InvalidJob(Rejected):
    pass


class ConstraintTooSlow(InvalidJob):
    pass


class PromptTooLong(Rejected):
    """`prompt_tokens` and `new_tokens` together exceed `limit`. A value of 0 means unknown. For a
    prompt that was not tokenized completely, `prompt_tokens` is a lower bound.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        prompt_tokens: int = 0,
        new_tokens: int = 0,
        limit: int = 0,
        is_whole: bool = True,
    ) -> None:
        super().__init__(message, param)
        self.prompt_tokens = prompt_tokens
        self.is_whole = is_whole
        self.new_tokens = new_tokens
        self.limit = limit


class Refused(EngineError):
    """`retry_after`: seconds after which a retry may succeed."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Full(Refused):
    pass


class Loading(Refused):
    pass


class Unloaded(Refused):
    pass


class Stalled(Refused):
    pass


class Draining(Refused):
    pass


class Dead(Refused):
    pass


class Failure(EngineError):
    pass


class JobFailed(Failure):
    pass


class BatchFailed(Failure):
    pass


class OutOfMemory(BatchFailed):
    pass


class Closed(Failure):
    pass


Error = TypeVar("Error", bound=BaseException)


def without_frames(error: Error) -> Error:
    """Returns the error without its traceback, so that it can be kept. The frames of a traceback
    hold local variables, which may include a model.
    """
    chain: list[BaseException] = [error]
    for one in chain:
        one.__traceback__ = None
        chain += [e for e in (one.__cause__, one.__context__) if e is not None and e not in chain]
    return error
