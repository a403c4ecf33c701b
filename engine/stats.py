"""The counts and states of an engine thread, as plain numbers for exporters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

_WAITS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)
_TIMES = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0)
_STEPS = (
    0.0005,
    0.001,
    0.002,
    0.004,
    0.008,
    0.016,
    0.032,
    0.064,
    0.128,
    0.256,
    0.512,
    1.0,
    2.0,
    5.0,
)
_TOKENS = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))

# Histograms, and the upper bounds of their buckets: seconds, tokens, jobs.
BOUNDS: Mapping[str, tuple[float, ...]] = {
    "time_to_first_token_seconds": (*_WAITS, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
    "inter_token_latency_seconds": (*_GAPS, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    **dict.fromkeys(
        (
            "e2e_request_latency_seconds",
            "request_queue_time_seconds",
            "request_prefill_time_seconds",
            "request_decode_time_seconds",
            "request_inference_time_seconds",
        ),
        (*_TIMES, 240.0, 480.0, 960.0, 1920.0, 7680.0),
    ),
    **dict.fromkeys(
        ("request_prompt_tokens", "request_generation_tokens", "request_params_max_tokens"),
        (*_TOKENS, 1e6),
    ),
    "iteration_tokens": (1.0, 8.0, *(float(2**power) for power in range(4, 15))),
    "iteration_seconds": _STEPS,
    "batch_size": tuple(float(2**power) for power in range(9)),
}


@dataclass(slots=True)
class Totals:
    """Counts since the engine thread began. They count jobs unless their names say otherwise."""

    prompt_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens found in the cache
    new_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0  # draft tokens kept
    stopped: int = 0
    cut: int = 0  # ended by a limit of tokens
    cancelled: int = 0
    failed: int = 0
    too_slow: int = 0  # failed because their constraint was too slow
    put_back: int = 0
    resets: int = 0  # recoveries by resetting the generator
    rebuilds: int = 0  # recoveries by making a new generator
    reloads: int = 0  # recoveries by reloading the model
    out_of_memory: int = 0  # times that memory ran out

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class Histogram:
    """`counts`: the number of values in each bucket, that is, above the previous bucket's bound and
    up to this bucket's bound; the last bucket has no bound. `total`: the sum of all values.
    """

    counts: tuple[int, ...]
    total: float

    def mean_since(self, before: "Histogram") -> float | None:
        """The mean of the values since `before`, or None if there are none."""
        number = sum(self.counts) - sum(before.counts)
        return (self.total - before.total) / number if number else None

    def __add__(self, other: "Histogram") -> "Histogram":
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return Histogram(counts, self.total + other.total)


@dataclass(slots=True)
class Work:
    """A backend's counts since its creation."""

    rows: int = 0  # rows of decode passes, one for each sequence
    computed_rows: int = 0  # `rows` plus those that pad captured passes
    drafts: int = 0  # sequences for which tokens were guessed, counted once per step
    retries: int = 0  # iterations that failed, and were tried again
    preempted: int = 0  # times that a job was parked because no page was left
    mask_seconds: float = 0.0  # core time for the masks of constraints

    def note_pass(self, rows: int, computed_rows: int) -> None:
        self.rows += rows
        self.computed_rows += computed_rows

    def __add__(self, other: "Work") -> "Work":
        return Work(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory in bytes. `allocated` and `reserved` are the amounts of this engine's process; `free`
    and `total` are the device's.
    """

    device: str
    allocated: int
    reserved: int
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class KeptWeights:
    """Float16 copies of quantized weights on a GPU. All fields are 0 if there are none."""

    num_bytes: int = 0
    min_tokens: int = 0  # the smallest pass that uses them


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The memory and the pages that a backend holds now."""

    referenced_pages: int = 0  # in use by jobs
    cached_pages: int = 0  # unused, with content that a prompt may reuse
    memory: tuple[DeviceMemory, ...] = ()
    parked_jobs: int = 0  # jobs without pages, waiting for some
    kept: KeptWeights = KeptWeights()


@dataclass(frozen=True, slots=True)
class Rates:
    """Means over the last few seconds, in tokens per second, for all jobs together."""

    new_tokens: float = 0.0
    prompt_tokens: float = 0.0
    iteration_seconds: float | None = None  # mean; None if there was no iteration


@dataclass(frozen=True, slots=True)
class Stats:
    """An event from the engine thread, which sends at most four per second, and only after a
    change.
    """

    time: float  # on the monotonic clock
    totals: Totals = field(default_factory=Totals)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    work: Work = field(default_factory=Work)
    num_active: int = 0
    num_pending: int = 0
    occupancy: Occupancy = Occupancy()
    began: float = 0.0  # when counting began, on the wall clock; identifies the counter
    num_wanted: int = 0  # jobs that wait in the servers of a shared engine, for any engine

    def after(self, before: "Stats | None") -> "Stats":
        """These counts plus the counts of earlier engine threads."""
        if before is None:
            return self
        histograms = {
            name: one + before.histograms[name] if name in before.histograms else one
            for name, one in self.histograms.items()
        }
        return replace(
            self,
            totals=self.totals + before.totals,
            histograms={**before.histograms, **histograms},
            work=self.work + before.work,
        )

    def at_rest(self) -> "Stats":
        """The same counts, for an engine that currently holds no jobs or memory."""
        return replace(self, num_active=0, num_pending=0, num_wanted=0, occupancy=Occupancy())


def together(time: float, several: Sequence[Stats], num_pending: int, began: float) -> Stats:
    """The sum at `time` over the engine threads that serve one model. `num_pending`: the number of
    further jobs, which wait for any of these threads.
    """
    total = Stats(time)
    for one in several:
        total = one.after(total)
    return replace(
        total,
        time=time,
        began=began,
        num_active=sum(one.num_active for one in several),
        num_pending=num_pending + sum(one.num_pending for one in several),
        num_wanted=max((one.num_wanted for one in several), default=0),  # each reports the same sum
        occupancy=Occupancy(
            sum(one.occupancy.referenced_pages for one in several),
            sum(one.occupancy.cached_pages for one in several),
            tuple(memory for one in several for memory in one.occupancy.memory),
            sum(one.occupancy.parked_jobs for one in several),
            KeptWeights(
                sum(one.occupancy.kept.num_bytes for one in several),
                max((one.occupancy.kept.min_tokens for one in several), default=0),
            ),
        ),
    )
