"""The engine, which takes jobs and returns events. `app/` may use only the names in this module.
The engine contains no HTTP code, and doesn't import torch until a model loads.
"""

from switchyard.engine.config import (
    PAGE_SIZE,
    CacheMode,
    Device,
    Library,
    LinkKind,
    Lora,
    ModelConfig,
    cache_bits,
)
from switchyard.engine.engine import Engine
from switchyard.engine.errors import (
    BatchFailed,
    Closed,
    ConstraintTooSlow,
    Dead,
    DeviceLost,
    Draining,
    EngineError,
    Failure,
    Full,
    InvalidJob,
    JobFailed,
    Loading,
    LoadUnderWay,
    ModelError,
    ModelNotFound,
    NoRoom,
    NotOurs,
    OutOfMemory,
    PromptTooLong,
    Refused,
    Rejected,
    Stalled,
    Unloaded,
)
from switchyard.engine.grammar import constraints
from switchyard.engine.job import Constraint, Forced, Healing, Job, Span
from switchyard.engine.memory.gpus import check_gpus
from switchyard.engine.memory.process import give_memory_back, keep_memory_small
from switchyard.engine.messages import (
    Chunk,
    Failed,
    Finished,
    FinishReason,
    JobEvent,
    JobState,
    Prefill,
    PromptLogprobs,
    PutBack,
    Queued,
    ReplicaStatus,
    Started,
    Timings,
    TokenLogprob,
)
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokenizer import ESCAPE, Tokenizer
from switchyard.engine.model.tokens.decoder import TextDecoder
from switchyard.engine.models.entry import Lease, ModelState, ModelStatus, Policy, Served
from switchyard.engine.models.load import Load, Way
from switchyard.engine.models.names import check_alias, check_aliases, listed
from switchyard.engine.models.opening import open_engine
from switchyard.engine.models.table import Models
from switchyard.engine.panics import panics_as
from switchyard.engine.sampling import PARAMETERS, BannedString, Sampling, Stage
from switchyard.engine.schedule.admission import State
from switchyard.engine.schedule.alarms import ALARMS
from switchyard.engine.schedule.usual import UsualAnswers
from switchyard.engine.sources import count_engines
from switchyard.engine.stats import BOUNDS, Histogram, Stats
from switchyard.engine.stream import Stream, Used
from switchyard.engine.trial.trial import try_directories

__all__ = [
    "ALARMS",
    "BOUNDS",
    "ESCAPE",
    "PAGE_SIZE",
    "PARAMETERS",
    "BannedString",
    "BatchFailed",
    "CacheMode",
    "Chunk",
    "Closed",
    "Constraint",
    "ConstraintTooSlow",
    "Dead",
    "Device",
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
    "Histogram",
    "InvalidJob",
    "Job",
    "JobEvent",
    "JobFailed",
    "JobState",
    "Lease",
    "Library",
    "LinkKind",
    "Load",
    "LoadUnderWay",
    "Loading",
    "Lora",
    "ModelConfig",
    "ModelDir",
    "ModelError",
    "ModelNotFound",
    "ModelState",
    "ModelStatus",
    "Models",
    "NoRoom",
    "NotOurs",
    "OutOfMemory",
    "Policy",
    "Prefill",
    "PromptLogprobs",
    "PromptTooLong",
    "PutBack",
    "Queued",
    "Refused",
    "Rejected",
    "ReplicaStatus",
    "Sampling",
    "Served",
    "Span",
    "Stage",
    "Stalled",
    "Started",
    "State",
    "Stats",
    "Stream",
    "TextDecoder",
    "Timings",
    "TokenLogprob",
    "Tokenizer",
    "Unloaded",
    "Used",
    "UsualAnswers",
    "Way",
    "cache_bits",
    "check_alias",
    "check_aliases",
    "check_gpus",
    "constraints",
    "count_engines",
    "give_memory_back",
    "keep_memory_small",
    "listed",
    "open_engine",
    "panics_as",
    "try_directories",
]
