"""Jobs in, events out: all that `app/` may use. No HTTP, and no torch until a model loads."""

from engine import constraints
from engine.config import ModelConfig
from engine.engine import Engine, State
from engine.errors import (
    BatchFailed,
    Closed,
    Dead,
    DeviceLost,
    Draining,
    EngineError,
    Failure,
    Full,
    InvalidJob,
    JobFailed,
    Loading,
    ModelError,
    ModelNotFound,
    OutOfMemory,
    PromptTooLong,
    Refused,
    Rejected,
    Stalled,
)
from engine.held import JobState
from engine.messages import (
    Chunk,
    Constraint,
    Failed,
    Finished,
    FinishReason,
    Forced,
    Healing,
    Job,
    JobEvent,
    Prefill,
    PromptLogprobs,
    Started,
    TokenLogprob,
)
from engine.model_dir import ModelDir
from engine.models import Models, open_engine
from engine.sampling import BannedString, Sampling
from engine.stream import Stream
from engine.tokenizer import ESCAPE, Tokenizer

__all__ = [
    "ESCAPE",
    "BannedString",
    "BatchFailed",
    "Chunk",
    "Closed",
    "Constraint",
    "Dead",
    "DeviceLost",
    "Draining",
    "Engine",
    "EngineError",
    "Failed",
    "Failure",
    "FinishReason",
    "Finished",
    "Forced",
    "Full",
    "Healing",
    "InvalidJob",
    "Job",
    "JobEvent",
    "JobFailed",
    "JobState",
    "Loading",
    "ModelConfig",
    "ModelDir",
    "ModelError",
    "ModelNotFound",
    "Models",
    "OutOfMemory",
    "Prefill",
    "PromptLogprobs",
    "PromptTooLong",
    "Refused",
    "Rejected",
    "Sampling",
    "Stalled",
    "Started",
    "State",
    "Stream",
    "TokenLogprob",
    "Tokenizer",
    "constraints",
    "open_engine",
]
