"""Metrics of engines: counts from the engine threads, read at each scrape."""

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from switchyard import engine
from switchyard.app.metrics.names import ENGINE, LABELS

STATES: tuple[engine.ModelState, ...] = (
    *("loading", "ready", "draining", "stopped"),
    *("recovering", "hanging", "unloaded", "failed"),
)
NOTHING = engine.Stats(0.0)
OWN = ("iteration_seconds", "batch_size")  # histograms that vLLM doesn't have

# For each name: the help text, and the path of the number in `engine.Stats`.
COUNTERS = {
    "vllm:prompt_tokens": ("Prompt tokens, including cached ones.", "totals.prompt_tokens"),
    "vllm:generation_tokens": ("Tokens generated.", "totals.new_tokens"),
    "vllm:prefix_cache_queries": ("Prompt tokens looked up.", "totals.prompt_tokens"),
    "vllm:prefix_cache_hits": ("Prompt tokens found in the cache.", "totals.cached_tokens"),
    "vllm:num_preemptions": ("Jobs parked because no page was free.", "work.preempted"),
    "vllm:spec_decode_num_drafts": ("Number of times that tokens were guessed.", "work.drafts"),
    "vllm:spec_decode_num_draft_tokens": ("Tokens guessed.", "totals.draft_tokens"),
    "vllm:spec_decode_num_accepted_tokens": (
        "Guessed tokens that were accepted.",
        "totals.accepted_tokens",
    ),
    "switchyard_mask_seconds": (
        "CPU seconds spent on the masks of constraints.",
        "work.mask_seconds",
    ),
    "switchyard_constraints_too_slow": (
        "Jobs ended because their constraint was too slow.",
        "totals.too_slow",
    ),
    "switchyard_jobs_put_back": (
        "Jobs put back into the queue after a failure.",
        "totals.put_back",
    ),
    "switchyard_out_of_memory": (
        "Number of times that a GPU ran out of memory.",
        "totals.out_of_memory",
    ),
}
REASONS = {"stop": "stopped", "length": "cut", "abort": "cancelled"}
RECOVERIES = {
    "retry": "work.retries",
    "reset": "totals.resets",
    "rebuild": "totals.rebuilds",
    "reload": "totals.reloads",
}
ROWS = {"used": "work.rows", "computed": "work.computed_rows"}


class EngineCollector(Collector):
    def __init__(self, models: Callable[[], engine.Models]) -> None:
        self._models = models

    def describe(self) -> list[Metric]:
        return []  # otherwise the registry would collect once only to compare names

    def collect(self) -> Iterator[Metric]:
        table = self._models()
        models = [table.get(name) for name in table.names]
        yield from _of_jobs(models)
        states = {name: table.status(name).state for name in table.names}
        yield from _of_states(models, states)
        yield from _of_memory(models)
        yield from _counters(models)
        yield from _recoveries(models)
        yield from _histograms(models)


def _stats(model: engine.Engine) -> engine.Stats:
    return model.standing.stats or NOTHING


def _labels(model: engine.Engine) -> list[str]:
    return [model.config.name, ENGINE]


def _number(stats: engine.Stats, path: str) -> float:
    part, name = path.split(".")
    number: float = getattr(getattr(stats, part), name)
    return number


def _of_jobs(models: Sequence[engine.Engine]) -> Iterator[Metric]:
    running = GaugeMetricFamily("vllm:num_requests_running", "Jobs in the batch.", labels=LABELS)
    waiting = GaugeMetricFamily(
        "vllm:num_requests_waiting", "Jobs that are waiting.", labels=LABELS
    )
    parked = GaugeMetricFamily(
        "switchyard_jobs_parked", "Jobs in the batch that have no pages.", labels=["model_name"]
    )
    wanted = GaugeMetricFamily(
        "switchyard_jobs_wanted",
        "Jobs of all servers that are waiting for shared engines.",
        labels=["model_name"],
    )
    age = GaugeMetricFamily(
        "switchyard_last_iteration_age_seconds",
        "Seconds since the engine thread last reported a step; 0 without jobs in the batch.",
        labels=["model_name"],
    )
    for model in models:
        stats = _stats(model)
        running.add_metric(_labels(model), stats.num_active)
        waiting.add_metric(_labels(model), max(model.num_jobs - stats.num_active, 0))
        parked.add_metric([model.config.name], stats.occupancy.parked_jobs)
        wanted.add_metric([model.config.name], stats.num_wanted)
        age.add_metric([model.config.name], last_iteration_age(model))
    yield from (running, waiting, parked, wanted, age)


def last_iteration_age(model: engine.Engine) -> float:
    """Seconds since the engine thread last reported a step; 0 without jobs in the batch."""
    stats = _stats(model)
    return max(time.monotonic() - stats.time, 0.0) if stats.num_active else 0.0


def _of_states(
    models: Sequence[engine.Engine], states: Mapping[str, engine.ModelState]
) -> Iterator[Metric]:
    state = GaugeMetricFamily(
        "switchyard_model_state",
        "1 for the model's current state, 0 for other states.",
        labels=["model_name", "state"],
    )
    progress = GaugeMetricFamily(
        "switchyard_model_load_progress",
        "Progress of the load, from 0 to 1.",
        labels=["model_name"],
    )
    seconds = GaugeMetricFamily(
        "switchyard_model_load_seconds", "Duration of the latest load.", labels=["model_name"]
    )
    for model in models:
        name = model.config.name
        for each in STATES:
            state.add_metric([name, each], states.get(name) == each)
        is_loaded = states.get(name) not in ("loading", "unloaded", "failed", None)
        progress.add_metric([name], 1.0 if is_loaded else model.progress or 0.0)
        if model.standing.load_seconds is not None:
            seconds.add_metric([name], model.standing.load_seconds)
    yield from (state, progress, seconds)


def _of_memory(models: Sequence[engine.Engine]) -> Iterator[Metric]:
    usage = GaugeMetricFamily(
        "vllm:kv_cache_usage_perc", "Share of pages that jobs use.", labels=LABELS
    )
    cache = GaugeMetricFamily(
        "vllm:cache_config_info",
        "Always 1; the labels describe the cache.",
        labels=[*LABELS, "block_size", "num_gpu_blocks", "cache_dtype"],
    )
    pages = GaugeMetricFamily(
        "switchyard_pages", "Pages of the cache, by state.", labels=["model_name", "state"]
    )
    memory = GaugeMetricFamily(
        "switchyard_gpu_memory_bytes",
        "GPU memory: allocated and reserved by the engine's process, free and total on the device.",
        labels=["model_name", "device", "kind"],
    )
    for model in models:
        info, held = model.standing.info, _stats(model).occupancy
        name = model.config.name
        if info is not None:
            usage.add_metric(_labels(model), held.referenced_pages / info.num_pages)
            told = [str(engine.PAGE_SIZE), str(info.num_pages), info.cache_mode]
            cache.add_metric([*_labels(model), *told], 1)
            free = info.num_pages - held.referenced_pages - held.cached_pages
            pages.add_metric([name, "referenced"], held.referenced_pages)
            pages.add_metric([name, "cached"], held.cached_pages)
            pages.add_metric([name, "free"], free)
        for gpu in held.memory:
            for kind in ("allocated", "reserved", "free", "total"):
                memory.add_metric([name, gpu.device, kind], getattr(gpu, kind))
    yield from (usage, cache, pages, memory)


def _counters(models: Sequence[engine.Engine]) -> Iterator[Metric]:
    for name, (meaning, path) in COUNTERS.items():
        counter = CounterMetricFamily(name, meaning, labels=LABELS)
        for model in models:
            counter.add_metric(_labels(model), _number(_stats(model), path))
        yield counter
    ends = CounterMetricFamily(
        "vllm:request_success",
        "Jobs that have finished, by reason; abort means cancelled.",
        labels=[*LABELS, "finished_reason"],
    )
    rows = CounterMetricFamily(
        "switchyard_batch_rows",
        "Rows in passes with one token per row: those that jobs used, and all that were computed,"
        " including padding.",
        labels=["model_name", "kind"],
    )
    failed = CounterMetricFamily(
        "switchyard_jobs_failed", "Jobs that ended with an error.", labels=["model_name"]
    )
    for model in models:
        stats, name = _stats(model), model.config.name
        for reason, total in REASONS.items():
            ends.add_metric([*_labels(model), reason], getattr(stats.totals, total))
        for kind, path in ROWS.items():
            rows.add_metric([name, kind], _number(stats, path))
        failed.add_metric([name], stats.totals.failed)
    yield from (ends, rows, failed)


def _recoveries(models: Sequence[engine.Engine]) -> Iterator[Metric]:
    counter = functools.partial(CounterMetricFamily, labels=["model_name"])
    recoveries = CounterMetricFamily(
        "switchyard_recoveries",
        "Recoveries, by the method that worked.",
        labels=["model_name", "kind"],
    )
    hangs = counter("switchyard_hangs", "Steps of the generator that did not return in time.")
    zombies = counter("switchyard_zombies", "Jobs that only the generator still had.")
    for model in models:
        name, standing, stats = model.config.name, model.standing, _stats(model)
        for kind, path in RECOVERIES.items():
            recoveries.add_metric([name, kind], _number(stats, path))
        recoveries.add_metric([name, "restart"], standing.num_restarts)
        hangs.add_metric([name], standing.num_hangs)
        zombies.add_metric([name], standing.num_zombies)
    yield from (recoveries, hangs, zombies)


def _histograms(models: Sequence[engine.Engine]) -> Iterator[Metric]:
    for name, bounds in engine.BOUNDS.items():
        is_own = name in OWN
        labels = LABELS[:1] if is_own else LABELS
        full = f"switchyard_{name}" if is_own else f"vllm:{name}"
        if name == "iteration_tokens":
            full += "_total"
        family = HistogramMetricFamily(full, MEANINGS[name], labels=labels)
        for model in models:
            one = _stats(model).histograms.get(
                name, engine.Histogram((0,) * (len(bounds) + 1), 0.0)
            )
            family.add_metric(
                _labels(model)[: len(labels)], buckets=_buckets(bounds, one), sum_value=one.total
            )
        yield family


def _buckets(bounds: Sequence[float], histogram: engine.Histogram) -> list[tuple[str, float]]:
    """Prometheus' buckets. They are cumulative: each bucket counts all values up to its bound."""
    buckets: list[tuple[str, float]] = []
    below = 0
    for bound, count in zip((*bounds, float("inf")), histogram.counts, strict=True):
        below += count
        buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), below))
    return buckets


MEANINGS = {
    "time_to_first_token_seconds": "Time from submission to the first token.",
    "inter_token_latency_seconds": "Time from a token to the next token of its job.",
    "e2e_request_latency_seconds": "Time from submission to the end.",
    "request_queue_time_seconds": "Time from submission to the start.",
    "request_prefill_time_seconds": "Time from the start to the first token.",
    "request_decode_time_seconds": "Time from the first token to the end.",
    "request_inference_time_seconds": "Time from the start to the end.",
    "request_prompt_tokens": "Prompt tokens of a finished job.",
    "request_generation_tokens": "New tokens of a finished job.",
    "request_params_max_tokens": "A job's limit on new tokens.",
    "iteration_tokens": "Prompt and new tokens in a step.",
    "iteration_seconds": "Duration of a step of the generator.",
    "batch_size": "Jobs in a step.",
}
