"""How one model is served. Picklable, so that it can cross into another process."""

import math
from dataclasses import dataclass
from typing import Literal

from switchyard.engine.errors import ModelError

PAGE_SIZE = 256  # tokens in a page of the cache; exllamav2's, not a choice
MAX_DRAFT_TOKENS = 7  # the generator's rows of logits for a step of a job, less the last token's
MIN_GPU_RESERVE = 0.25  # GiB that exllamav2's loader keeps free itself

Device = Literal["auto", "cuda", "cpu"]
CacheMode = Literal["float16", "8bit", "Q8", "Q6", "Q4"]  # exllamav2's names
LinkKind = Literal["auto", "thread", "process"]


@dataclass(frozen=True, slots=True)
class Lora:
    """Weights that are added to a model's, for all jobs."""

    path: str  # a directory as PEFT writes it
    name: str
    scaling: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Lengths in tokens. Raises ModelError for a value that exllamav2 can't honour."""

    path: str
    name: str
    device: Device = "auto"
    link: LinkKind = "auto"  # where its engine thread runs: in this process, or one of its own
    max_seq_len: int | None = None  # None: what the model was made for
    rope_scale: float | None = None  # positions are divided by it
    rope_alpha: float | None = None  # NTK: the base of the rotary embedding grows with it
    # Shared by all active jobs, in pages of 256. "auto": what memory is left.
    cache_tokens: int | Literal["auto"] = 16384
    cache_mode: tuple[CacheMode, ...] = ("float16",)  # the first with which all fits
    gpu_reserve: float = 0.5  # GiB of each GPU that stay free
    gpu_split: tuple[float, ...] = ()  # GiB on each GPU, but for the cache; (): as they have room
    tensor_parallel: bool = False  # each layer on all GPUs
    loras: tuple[Lora, ...] = ()
    draft_model: str | None = None  # directory of a model that guesses tokens
    ngram_draft: bool = False  # guess them by what has come before
    num_draft_tokens: int = 4  # guessed at once, where any are
    max_batch_size: int = 32  # most active jobs
    max_pending: int = 64  # most jobs that wait for a place in the batch
    max_pending_tokens: int = 131072  # of their prompts together; a job comes in where none waits
    max_priority: int = 0  # of a job; a higher one is rejected
    fair_wait_factor: float = 4.0  # see Pending; 1: first come, first served
    hang_timeout: float = 60.0  # seconds of an iteration after which all jobs are given up
    hang_exit: float = 180.0  # seconds of it after which the engine is, too
    # Of a prompt in one iteration while other jobs decode. None: as the device is fast.
    max_chunk_size: int | None = None
    default_max_tokens: int = 512  # new tokens, if the request doesn't say; so are the next three
    default_repetition_penalty: float = 1.0
    default_frequency_penalty: float = 0.0
    default_stop_on_loop: bool = False

    def __post_init__(self) -> None:
        if self.cache_tokens != "auto" and (
            self.cache_tokens % PAGE_SIZE or self.cache_tokens < PAGE_SIZE
        ):
            raise ModelError(
                f"cache_tokens must be a multiple of {PAGE_SIZE}, or auto", "cache_tokens"
            )
        self._check_gpus()
        if self.max_chunk_size is not None and self.max_chunk_size < 16:
            raise ModelError("max_chunk_size must be at least 16 tokens", "max_chunk_size")
        if self.max_seq_len is not None and self.max_seq_len < PAGE_SIZE:
            raise ModelError(f"max_seq_len must be at least {PAGE_SIZE} tokens", "max_seq_len")
        for name in ("max_batch_size", "max_pending_tokens", "default_max_tokens"):
            if getattr(self, name) < 1:
                raise ModelError(f"{name} must be at least 1", name)
        if not 0.1 <= self.default_repetition_penalty <= 10:
            raise ModelError(
                "default_repetition_penalty must be from 0.1 to 10", "default_repetition_penalty"
            )
        if not -2 <= self.default_frequency_penalty <= 2:
            raise ModelError(
                "default_frequency_penalty must be from -2 to 2", "default_frequency_penalty"
            )
        if not 1 <= self.fair_wait_factor < math.inf:
            raise ModelError("fair_wait_factor must be at least 1", "fair_wait_factor")
        if not 0 < self.hang_timeout <= self.hang_exit < math.inf:
            raise ModelError("hang_timeout must be above 0, hang_exit not less", "hang_timeout")
        if self.max_pending < 0:
            raise ModelError("max_pending must not be negative", "max_pending")

    def _check_gpus(self) -> None:
        if not self.cache_mode or len(set(self.cache_mode)) < len(self.cache_mode):
            raise ModelError("cache_mode must name one or more, none of them twice", "cache_mode")
        if self.draft_model is not None and self.ngram_draft:
            raise ModelError("there can't be both draft_model and ngram_draft", "ngram_draft")
        if self.tensor_parallel and (self.draft_model is not None or self.loras):
            raise ModelError(
                "ExLlamaV2's tensor_parallel has no LoRAs, and is not tried with a draft model",
                "tensor_parallel",
            )
        if len({lora.name for lora in self.loras}) < len(self.loras):
            raise ModelError("loras must have different names", "loras")
        if not all(math.isfinite(lora.scaling) for lora in self.loras):
            raise ModelError("loras must have a finite scaling", "loras")
        if not 1 <= self.num_draft_tokens <= MAX_DRAFT_TOKENS:
            raise ModelError(
                f"num_draft_tokens must be from 1 to {MAX_DRAFT_TOKENS}", "num_draft_tokens"
            )
        for name in ("rope_scale", "rope_alpha"):
            if not 0 < (getattr(self, name) or 1.0) < math.inf:
                raise ModelError(f"{name} must be above 0", name)
        if "8bit" in self.cache_mode:
            raise ModelError(
                "cache_mode 8bit: ExLlamaV2's dynamic generator can't work with this cache; Q8 is"
                " as small",
                "cache_mode",
            )
        if not MIN_GPU_RESERVE <= self.gpu_reserve < math.inf:
            raise ModelError(f"gpu_reserve must be at least {MIN_GPU_RESERVE} GiB", "gpu_reserve")
        if not all(0 <= size < math.inf for size in self.gpu_split) or (
            self.gpu_split and not any(self.gpu_split)
        ):
            raise ModelError("gpu_split must be GiB for each GPU, not all 0", "gpu_split")

    @property
    def has_draft(self) -> bool:
        """Whether tokens are guessed."""
        return self.ngram_draft or self.draft_model is not None

    @property
    def max_jobs(self) -> int:
        """Most jobs that the engine holds at once, active and pending."""
        return self.max_batch_size + self.max_pending
