"""Metrics of requests, counted when their accounts close."""

from collections.abc import Sequence
from typing import NamedTuple, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram

from switchyard import engine
from switchyard.app.metrics.names import ENGINE, LABELS
from switchyard.app.operations.account import Account, Phase

MAX_KEYS = 1000  # keys with their own label; the others count as OTHER
OTHER = "other"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class _Tokens(NamedTuple):
    prompt: Counter
    cached: Counter
    completion: Counter


class RequestMetrics:
    """Counts requests. Labels come only from this server's routes, models and keys."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(name, meaning, labels, registry=registry)

        def histogram(
            name: str, meaning: str, labels: Sequence[str], buckets: Sequence[float]
        ) -> Histogram:
            return Histogram(name, meaning, labels, buckets=buckets, registry=registry)

        name = "switchyard_http_requests"
        self._answers = counter(name, "Requests that have ended.", "route", "method", "status")
        meaning = "Time from a request's headers to the end of its response."
        self._seconds = histogram("switchyard_http_request_seconds", meaning, ["route"], SECONDS)
        meaning = "Requests answered with an error, by the code in its body."
        self._rejections = counter("switchyard_rejections", meaning, "code")
        meaning = "Clients that left before the end, by the phase of their jobs."
        self._gone = counter("switchyard_clients_gone", meaning, "phase")
        meaning = (
            "Tokens of requests that have ended, by API key. Prompt tokens include cached ones."
        )
        self._tokens = counter("switchyard_tokens", meaning, "key", "kind")
        meaning = "Requests that submitted jobs and have ended."
        self._requests = counter("switchyard_requests", meaning, "key", "model_name")
        name, meaning = "vllm:request_params_n", "Choices per prompt."
        self._num_choices = histogram(name, meaning, LABELS, (1, 2, 5, 10, 20))
        name, meaning = "vllm:request_max_num_generation_tokens", "Tokens in the longest choice."
        bounds = engine.BOUNDS["request_generation_tokens"]
        self._longest = histogram(name, meaning, LABELS, bounds)
        for phase in get_args(Phase):  # so that every label exists with 0 from the start
            self._gone.labels(phase)
        self._by_key: dict[str, _Tokens] = {}

    def begin(self, account: Account) -> None:
        self._num_choices.labels(account.model, ENGINE).observe(account.num_jobs)

    def end(self, account: Account) -> None:
        if account.identifiers:
            self._count_tokens(account)
        if not account.said or account.is_quiet:
            return
        route, status = account.said["route"], account.said["status"]
        self._answers.labels(route, account.said["method"], status).inc()
        self._seconds.labels(route).observe(account.ended - account.begun)
        if code := account.said.get("code"):
            self._rejections.labels(code).inc()
        if phase := _phase_left(account, status):
            self._gone.labels(phase).inc()

    def _count_tokens(self, account: Account) -> None:
        key = account.payer
        if key not in self._by_key and len(self._by_key) >= MAX_KEYS:
            key = OTHER
        counters = self._by_key.get(key) or self._counters(key)
        used = account.consumption
        counters.prompt.inc(used.prompt_tokens or 0)
        counters.cached.inc(used.cached_tokens or 0)
        counters.completion.inc(used.new_tokens or 0)
        self._requests.labels(key, account.model).inc()
        longest = max((used.new_tokens for used in account.used.values()), default=0)
        self._longest.labels(account.model, ENGINE).observe(longest)

    def _counters(self, key: str) -> _Tokens:
        counters = _Tokens(*(self._tokens.labels(key, kind) for kind in _Tokens._fields))
        self._by_key[key] = counters
        return counters


def _phase_left(account: Account, status: int) -> Phase | None:
    """The phase that the jobs were in when the client left; None if the client did not leave."""
    if account.gone is not None or status != 499:
        return account.gone
    used = account.used.values()
    if any(each.new_tokens for each in used):
        return "decode"
    is_started = any(each.computed_tokens or each.cached_tokens for each in used)
    return "prefill" if is_started else "pending"
