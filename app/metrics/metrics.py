"""All metrics of one application, in a registry separate from that of a host application."""

import functools
import heapq
import importlib.metadata
import platform
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Metric,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from switchyard import __version__, engine
from switchyard.app.delivery.answers import Answers
from switchyard.app.http.places import Places
from switchyard.app.http.threads import Threads
from switchyard.app.ledger.ledger import Ledger
from switchyard.app.metrics.engines import EngineCollector
from switchyard.app.metrics.requests import MAX_KEYS, RequestMetrics
from switchyard.app.operations.guard import Checks
from switchyard.app.operations.keys import ApiKey

# The format is the same whatever a client accepts, because OpenMetrics would turn `vllm:` into
# `vllm_`.
MIMETYPE, PARAMETERS = "text/plain", "; version=0.0.4; charset=utf-8"
LIBRARIES = ("exllamav2", "torch")


class Metrics:
    def __init__(
        self,
        models: Callable[[], engine.Models],
        answers: Answers,
        websockets: Places,
        threads: Threads,
        checks: Checks | None,
        ledger: Ledger | None,
    ) -> None:
        self.registry = CollectorRegistry()
        self.requests = RequestMetrics(self.registry)
        self.registry.register(EngineCollector(models))
        self.registry.register(ServerCollector(answers, websockets, threads, checks, ledger))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def render(self) -> bytes:
        return generate_latest(self.registry)


class ServerCollector(Collector):
    """Metrics of the application and its server, read at each scrape."""

    def __init__(
        self,
        answers: Answers,
        websockets: Places,
        threads: Threads,
        checks: Checks | None,
        ledger: Ledger | None,
    ) -> None:
        self._answers = answers
        self._websockets = websockets
        self._threads = threads
        self._checks = checks
        self._ledger = ledger
        self._build = {"version": __version__, "python": platform.python_version()}
        self._build |= {name: _version(name) for name in LIBRARIES}

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily(
            "switchyard_build_info", "Always 1; the labels are versions.", labels=list(self._build)
        )
        build.add_metric(list(self._build.values()), 1)
        yield build
        lags = [output.num_behind for output in list(self._answers.streams)]
        lag = GaugeMetricFamily(
            "switchyard_stream_lag_tokens",
            "Tokens that open streams have generated but not yet written.",
            labels=["stat"],
        )
        lag.add_metric(["max"], max(lags, default=0))
        lag.add_metric(["mean"], sum(lags) / len(lags) if lags else 0.0)
        yield lag
        yield GaugeMetricFamily("switchyard_streams_open", "Answers being streamed.", len(lags))
        websockets = self._websockets.num_taken
        yield GaugeMetricFamily("switchyard_websockets_open", "WebSockets.", websockets)
        if self._threads.count is not None:
            busy, number = self._threads.count()
            threads = GaugeMetricFamily(
                "switchyard_request_threads", "Request threads.", labels=["state"]
            )
            threads.add_metric(["busy"], busy)
            threads.add_metric(["all"], number)
            yield threads
        if self._ledger is not None:
            errors = CounterMetricFamily(
                "switchyard_ledger_errors",
                "Ledger rows that were lost, and failed attempts to write the ledger.",
                value=self._ledger.num_errors,
            )
            yield errors
        if self._checks is not None:
            keyring = self._checks.keyring
            reloads = CounterMetricFamily(
                "switchyard_keys_reloads", "Reloads of the key file.", labels=["result"]
            )
            reloads.add_metric(["done"], keyring.num_reloads)
            reloads.add_metric(["failed"], keyring.num_failed)
            yield reloads
            if self._ledger is not None:
                yield _budgets(self._ledger.spent(keyring.entries))


def _budgets(spent: Iterable[tuple[ApiKey, int]]) -> Metric:
    """The budgets of the MAX_KEYS keys that have spent the largest shares of their budgets."""
    found = GaugeMetricFamily(
        "switchyard_budget_tokens",
        "Budget of an API key in the current period, and the amount spent.",
        labels=["key", "state"],
    )
    shown = heapq.nlargest(MAX_KEYS, spent, key=lambda one: one[1] / (one[0].budget_tokens or 1))
    for key, tokens in shown:
        found.add_metric([key.name, "spent"], tokens)
        found.add_metric([key.name, "all"], key.budget_tokens or 0)
    return found


@functools.cache
def _version(name: str) -> str:
    """The version of an installed package; empty if it isn't installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
