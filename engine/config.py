"""The configuration of one model. Picklable, so that it can be sent to another process."""

import math
import re
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from switchyard.engine.errors import ModelError
from switchyard.engine.sampling import PARAMETERS
from switchyard.engine.sources import count_engines, is_source

PAGE_SIZE = 256  # tokens in a page of the cache; fixed by exllamav2
MAX_DRAFT_TOKENS = 7  # one less than the generator's rows of logits per job and step
MIN_GPU_RESERVE = 0.25  # GiB that exllamav2's loader always keeps free
LEAST = {"max_chunk_size": 16, "max_seq_len": PAGE_SIZE, "max_pending": 0} | dict.fromkeys(
    ("max_batch_size", "max_pending_tokens", "default_max_tokens", "replicas"), 1
)

Device = Literal["auto", "cuda", "cpu"]
CacheMode = str  # a key of CACHE_BITS; for EXL3 also the bits of keys and values, such as 5,4
# The keys are exllamav2's names.
CACHE_BITS: dict[CacheMode, tuple[int, int]] = {
    **{"float16": (16, 16), "Q8": (8, 8), "Q6": (6, 6), "Q4": (4, 4)}
}
Library = Literal["auto", "exl2", "exl3"]
LinkKind = Literal["auto", "thread", "process", "socket"]

Value = TypeVar("Value")


def cache_bits(mode: CacheMode) -> tuple[int, int]:
    """Returns the bits per number in keys and in values. Raises ModelError."""
    if (pair := re.fullmatch(r"([2-8]),([2-8])", mode)) is not None:
        return int(pair[1]), int(pair[2])
    if mode not in CACHE_BITS:
        raise ModelError(
            f"cache_mode {mode!r} must be one of {', '.join(CACHE_BITS)} or, for EXL3, the bits of"
            " keys and of values, each from 2 to 8, such as 5,4",
            "cache_mode",
        )
    return CACHE_BITS[mode]


def _option(default: Value, doc: str) -> Value:
    """A field that is also a setting of the server, with this default and description."""
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, slots=True)
class Lora:
    """Weights that are added to the model's weights, for all jobs."""

    path: str  # a directory in PEFT's format
    name: str
    scaling: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The configuration of one model. Lengths are in tokens. Raises ModelError for an invalid
    value.

    All fields with a description are settings of the server, with these defaults.
    """

    path: str
    name: str
    device: Device = _option(  # noqa: RUF009
        "auto",
        "`cuda`, `cpu`, or `auto`: CUDA if there is a GPU, otherwise the CPU. If torch can't use"
        " the GPU, the server doesn't start.",
    )
    link: LinkKind = _option(  # noqa: RUF009
        "auto",
        "Where the model's engine runs: in a `thread` of the server's process; in its own"
        " `process`, which is restarted if it dies; in a process that `switchyard engine` runs and"
        " several servers share (`socket`); or `auto`: in a process on a GPU, otherwise in a"
        " thread.",
    )
    at: tuple[str, ...] = _option(
        (),
        "Where shared engines listen: `unix:PATH` or `HOST:PORT`; or a source that lists engines"
        " and is read every second: `file:PATH`, with one address per line, or `dns:HOST:PORT`, for"
        " all addresses of a name.",
    )
    engine_key_file: str | None = _option(
        None,
        "File with the key of shared engines, 32 bytes or more. Server and engine each prove that"
        " they have it. Needed for `HOST:PORT`, and between different users. Anyone who has the"
        " key can run code on both.",
    )
    gpus: tuple[int, ...] = _option(
        (),
        "Numbers of the GPUs that the model may use, as this process numbers them. Empty: all.",
    )
    replicas: int = _option(
        1,
        "Number of engines that serve the model together. Each is a process with its own copy of"
        " the weights, on an equal share of the GPUs.",
    )
    backend: Library = _option(  # noqa: RUF009
        "auto",
        "The library that runs the model on a GPU: `exl2`, `exl3` or `auto`. With `auto`,"
        " ExLlamaV3 runs EXL3 models, and float16 models whose architecture ExLlamaV2 doesn't"
        " support.",
    )
    max_seq_len: int | None = _option(
        None, "Maximum length of prompt and completion together, in tokens. Default: the model's."
    )
    rope_scale: float | None = _option(
        None,
        "Divide token positions by this number, to extend the context of models trained with it."
        " GPUs only. Default: the model's.",
    )
    rope_alpha: float | None = _option(
        None,
        "NTK scaling factor of the rotary embedding, to extend the context without training."
        " GPUs only. Default: none.",
    )
    cache_tokens: int | Literal["auto"] = _option(
        16384,
        "Size of the cache for all jobs, in tokens, a multiple of 256; or"
        " `auto`: as many as fit in GPU memory, up to `max_batch_size` contexts.",
    )
    cache_mode: tuple[CacheMode, ...] = _option(
        ("float16",),
        "Format of keys and values in the cache on GPUs: `float16`, `Q8`, `Q6` or `Q4`; for EXL3"
        " also the bits of keys and of values, each from 2 to 8, such as `5,4`."
        " From a list, the server uses the first mode with which everything fits in memory.",
    )
    gpu_reserve: float = _option(0.5, "GiB to leave free on each GPU, at least 0.25.")
    gpu_split: tuple[float, ...] = _option(
        (),
        "GiB of weights and work space on each GPU, in order. Empty: each is"
        " filled before the next.",
    )
    unpacked_weights: float | Literal["auto", "off"] = _option(
        "auto",
        "GiB for float16 copies of an EXL2 model's weights, which speed up passes of many tokens."
        " `auto`: all that the cache leaves free; a number: at most that much; or `off`. With"
        " `[[models]]` or a `models_dir`, `auto` means `off`.",
    )
    products: Literal["auto", "exllamav2"] = _option(
        "auto",
        "Which kernels multiply by an EXL2 model's weights. `auto`: our own in passes of up to 64"
        " tokens, if the model and the GPU support them. `exllamav2`: always the library's.",
    )
    tensor_parallel: bool = _option(
        False, "Split each layer over all GPUs, instead of giving each GPU whole layers."
    )
    loras: tuple[Lora, ...] = _option(
        (),
        "LoRAs for all requests: `[[loras]]` tables, each with the `path` of an adapter in PEFT's"
        " format, and optionally a `name` and a `scaling`. GPUs only.",
    )
    draft_model: str | None = _option(
        None,
        "Directory of a draft model: a smaller model with the same vocabulary, which guesses the"
        " next tokens of `model`. Default: none.",
    )
    ngram_draft: bool = _option(
        False, "Guess tokens from n-grams of the prompt and the new text, without a draft model."
    )
    num_draft_tokens: int = _option(
        4, "Number of tokens that a draft model or n-grams guess in one step: 1 to 7."
    )
    max_batch_size: int = _option(32, "Maximum number of jobs that generate at the same time.")
    max_pending: int = _option(
        64, "Maximum number of jobs waiting for a place in the batch; more are refused with 429."
    )
    max_pending_tokens: int = _option(
        131072,
        "Maximum number of prompt tokens of all waiting jobs together; jobs beyond this limit are"
        " refused with 429, unless no other job waits.",
    )
    max_priority: int = _option(
        0,
        "Highest `priority` that a request may set; any client may set it. A request's default is"
        " 0.",
    )
    fair_wait_factor: float = _option(
        4.0,
        "How long a job may wait while shorter jobs of its client overtake it, as a multiple of its"
        " fair wait: the client's waiting work when the job arrives. 1: first come, first served."
        " All waiting jobs of lower priority together get 1 / (this value + 1) of the work.",
    )
    silence_timeout: float = _option(
        5.0,
        "Seconds without a sign of life after which an engine's process gets no more jobs. Jobs"
        " whose text has begun end with an error, and the others continue elsewhere.",
    )
    hang_timeout: float = _option(
        60.0,
        "Seconds after which an iteration that doesn't return counts as hanging. Its jobs end"
        " with an error, and new ones are refused until it returns.",
    )
    hang_exit: float = _option(
        180.0,
        "Seconds after which a process whose iteration hangs is killed and replaced.",
    )
    max_chunk_size: int | None = _option(
        None,
        "Maximum number of prompt tokens in one iteration while jobs are decoded. Default: 2048 on"
        " a GPU, otherwise 128. The limit starts at 512 (256 for EXL3, 64 without a GPU) and"
        " doubles with each iteration in which a prompt waits.",
    )
    max_gap_ms: float | None = _option(
        None,
        "Target for the milliseconds between two tokens of a running stream while new prompts are"
        " computed: 1 to 10000. An iteration computes as many prompt tokens as fit, judging by"
        " earlier iterations. Default: 50 on a GPU, otherwise none.",
    )
    default_max_tokens: int | None = _option(
        None,
        "Default `max_tokens` of requests, except those to `/v1/completions`. Default: what is left"
        " of the context; 512 for KoboldAI's routes.",
    )
    default_repetition_penalty: float = _option(
        PARAMETERS["repetition_penalty"].default,
        "Default `repetition_penalty` of requests.",
    )
    default_frequency_penalty: float = _option(
        PARAMETERS["frequency_penalty"].default,
        "Default `frequency_penalty` of requests.",
    )
    default_stop_on_loop: bool | None = _option(
        None,
        "Default `stop_on_loop` of requests. Default: `true` if neither the request nor"
        " `default_max_tokens` limits the new tokens.",
    )

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            if (value := getattr(self, name)) is not None and value < least:
                raise ModelError(f"{name} must be at least {least}", name)
        if self.cache_tokens != "auto" and (
            self.cache_tokens % PAGE_SIZE or self.cache_tokens < PAGE_SIZE
        ):
            raise ModelError(
                f"cache_tokens must be a multiple of {PAGE_SIZE}, or auto", "cache_tokens"
            )
        self._check_gpus()
        self._check_memory()
        if self.max_gap_ms is not None and not 1 <= self.max_gap_ms <= 10_000:
            wrong = f"max_gap_ms is {self.max_gap_ms:g}, but must be from 1 to 10000"
            raise ModelError(wrong, "max_gap_ms")
        for name in ("repetition_penalty", "frequency_penalty"):
            low, high = (PARAMETERS[name].limits[limit] for limit in ("ge", "le"))
            if not low <= getattr(self, f"default_{name}") <= high:
                raise ModelError(f"default_{name} must be from {low} to {high}", f"default_{name}")
        if not 1 <= self.fair_wait_factor < math.inf:
            raise ModelError("fair_wait_factor must be at least 1", "fair_wait_factor")
        if not 0 < self.hang_timeout <= self.hang_exit < math.inf:
            wrong = "hang_timeout must be above 0, and hang_exit must be at least hang_timeout"
            raise ModelError(wrong, "hang_timeout")
        if not 0 < self.silence_timeout < math.inf:
            raise ModelError("silence_timeout must be above 0", "silence_timeout")

    def _check_gpus(self) -> None:
        if self.gpus and (min(self.gpus) < 0 or len(set(self.gpus)) < len(self.gpus)):
            raise ModelError("gpus must be different numbers, 0 or above", "gpus")
        if self.gpus and self.device == "cpu":
            raise ModelError("gpus needs a GPU, but the device is cpu", "gpus")
        if bool(self.at) != (self.link == "socket"):
            raise ModelError("at needs link = socket, and link = socket needs at", "at")
        if len(set(self.at)) < len(self.at):
            raise ModelError("at must not list an address twice", "at")
        if self.gpus and self.link == "thread":
            raise ModelError("gpus needs the model's own process, but link is thread", "gpus")
        if self.replicas > 1 and self.link == "thread":
            raise ModelError("replicas need their own processes, but link is thread", "replicas")
        if len(self.gpus) % self.replicas:
            raise ModelError(
                f"{len(self.gpus)} gpus can't be divided equally among {self.replicas} replicas",
                "replicas",
            )
        if not self.cache_mode or len(set(self.cache_mode)) < len(self.cache_mode):
            raise ModelError("cache_mode must list at least one mode, and none twice", "cache_mode")
        for mode in self.cache_mode:
            cache_bits(mode)
        if self.draft_model is not None and self.ngram_draft:
            raise ModelError("draft_model and ngram_draft can't be combined", "ngram_draft")
        if self.tensor_parallel and (self.draft_model is not None or self.loras):
            raise ModelError(
                "tensor_parallel can't be combined with LoRAs or a draft model",
                "tensor_parallel",
            )
        if len({lora.name for lora in self.loras}) < len(self.loras):
            raise ModelError("loras must have different names", "loras")
        if not all(math.isfinite(lora.scaling) for lora in self.loras):
            raise ModelError("loras must have a finite scaling", "loras")
        if not 1 <= self.num_draft_tokens <= MAX_DRAFT_TOKENS:
            wrong = f"num_draft_tokens must be from 1 to {MAX_DRAFT_TOKENS}"
            raise ModelError(wrong, "num_draft_tokens")
        for name in ("rope_scale", "rope_alpha"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ModelError(f"{name} must be above 0", name)

    def _check_memory(self) -> None:
        if not MIN_GPU_RESERVE <= self.gpu_reserve < math.inf:
            raise ModelError(f"gpu_reserve must be at least {MIN_GPU_RESERVE} GiB", "gpu_reserve")
        if isinstance(self.unpacked_weights, int | float) and not (
            0 < self.unpacked_weights < math.inf
        ):
            raise ModelError(
                "unpacked_weights must be auto, off, or a number of GiB above 0", "unpacked_weights"
            )
        if not all(0 <= size < math.inf for size in self.gpu_split) or (
            self.gpu_split and not any(self.gpu_split)
        ):
            raise ModelError(
                "gpu_split must list the GiB for each GPU, and not only zeros", "gpu_split"
            )

    @property
    def has_draft(self) -> bool:
        """Whether a draft model or n-grams guess tokens."""
        return self.ngram_draft or self.draft_model is not None

    @property
    def directories(self) -> tuple[str, ...]:
        """The directories of the model and its draft model."""
        return (self.path,) if self.draft_model is None else (self.path, self.draft_model)

    @property
    def has_source(self) -> bool:
        """Whether a source lists the shared engines, so that engines can join and leave."""
        return any(map(is_source, self.at))

    @property
    def max_jobs(self) -> int:
        """The maximum number of jobs that the engine holds at once, active and pending."""
        return self.max_jobs_of(count_engines(self.at))

    def max_jobs_of(self, num_engines: int) -> int:
        """Like `max_jobs`, with this number of shared engines."""
        return max(num_engines, 1) * self.replicas * self.max_batch_size + self.max_pending
