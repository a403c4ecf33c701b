"""Each number of /metrics is the one that its name says: all are told apart, and none twice."""

import time
from dataclasses import fields
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from switchyard import engine
from switchyard.app.http.places import Places
from switchyard.app.http.threads import Threads
from switchyard.app.metrics.metrics import ServerCollector
from switchyard.app.metrics.requests import RequestMetrics
from switchyard.app.operations.account import Account
from switchyard.app.operations.keys import parse_keys
from switchyard.engine.stats import DeviceMemory, Occupancy, Totals, Work
from switchyard.engine.stream import Used
from tests.operations.conftest import entry
from tests.operations.test_metrics import series, value
from tests.scripted import job

COUNTED = {
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "new_tokens",
    "vllm:prefix_cache_queries_total": "prompt_tokens",
    "vllm:prefix_cache_hits_total": "cached_tokens",
    "vllm:num_preemptions_total": "preempted",
    "switchyard_jobs_put_back_total": "put_back",
    "vllm:spec_decode_num_drafts_total": "drafts",
    "vllm:spec_decode_num_draft_tokens_total": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted_tokens",
    "switchyard_out_of_memory_total": "out_of_memory",
    "switchyard_jobs_failed_total": "failed",
    "switchyard_constraints_too_slow_total": "too_slow",
    "switchyard_mask_seconds_total": "mask_seconds",
}
LABELLED = {
    ("vllm:request_success_total", "finished_reason"): {
        "stop": "stopped",
        "length": "cut",
        "abort": "cancelled",
    },
    ("switchyard_recoveries_total", "kind"): {
        "retry": "retries",
        "reset": "resets",
        "rebuild": "rebuilds",
        "reload": "reloads",
    },
    ("switchyard_batch_rows_total", "kind"): {"used": "rows", "computed": "computed_rows"},
}


def test_what_engines_count_has_its_own_name(client):
    model = client.models.get()
    numbers = {one.name: 1000 + i for i, one in enumerate((*fields(Totals), *fields(Work)))}
    totals = Totals(**{one.name: numbers[one.name] for one in fields(Totals)})
    work = Work(**{one.name: numbers[one.name] for one in fields(Work)})
    memory = DeviceMemory("gpu", 1, 2, 3, 4)
    counts = {
        name: engine.Histogram((*range(1, len(bounds) + 1), 7), 100.0 + i)
        for i, (name, bounds) in enumerate(engine.BOUNDS.items())
    }
    now = time.monotonic() - 5
    model.deliver(
        [engine.Stats(now, totals, counts, work, 2, 3, Occupancy(1, 2, (memory,), 4), num_wanted=5)]
    )
    standing = model.standing
    standing.num_hangs, standing.num_zombies, standing.num_restarts = 11, 12, 13
    standing.load_seconds = 14.5
    found = series(client)
    assert {name: value(found, name) for name in COUNTED} == {
        name: numbers[field] for name, field in COUNTED.items()
    }
    for (name, label), told in LABELLED.items():
        for kind, field in told.items():
            assert value(found, name, **{label: kind}) == numbers[field], (name, kind)
    assert set(COUNTED.values()) | {f for told in LABELLED.values() for f in told.values()} == set(
        numbers
    )
    assert value(found, "switchyard_hangs_total") == 11
    assert value(found, "switchyard_zombies_total") == 12
    assert value(found, "switchyard_recoveries_total", kind="restart") == 13
    assert value(found, "switchyard_model_load_seconds") == 14.5
    assert value(found, "switchyard_model_load_progress") == 1.0
    assert value(found, "vllm:num_requests_running") == 2
    assert value(found, "switchyard_jobs_parked") == 4
    assert value(found, "switchyard_jobs_wanted") == 5
    assert 5 <= value(found, "switchyard_last_iteration_age_seconds") < 60
    for kind, size in (("allocated", 1), ("reserved", 2), ("free", 3), ("total", 4)):
        assert value(found, "switchyard_gpu_memory_bytes", kind=kind) == size
    for name, bounds in engine.BOUNDS.items():
        full = f"switchyard_{name}" if name in ("iteration_seconds", "batch_size") else ""
        full = full or f"vllm:{name}" + "_total" * (name == "iteration_tokens")
        assert value(found, f"{full}_sum") == counts[name].total
        assert value(found, f"{full}_count") == sum(counts[name].counts)
        assert value(found, f"{full}_bucket", le=str(float(bounds[1]))) == 3
    assert value(found, "vllm:num_requests_waiting") == 0  # their jobs have ended meanwhile
    num_pages = model.info.num_pages
    for state, number in (("referenced", 1), ("cached", 2), ("free", num_pages - 3)):
        assert value(found, "switchyard_pages", state=state) == number
    assert value(found, "vllm:kv_cache_usage_perc") == 1 / num_pages


def test_what_the_server_holds_has_its_own_name():
    streams = [SimpleNamespace(num_behind=number) for number in (1, 2, 6)]
    threads = Threads()
    threads.count = lambda: (3, 40)
    places = Places(8)
    places.take("a")
    registry = CollectorRegistry()
    [ann] = parse_keys(
        entry("ann", budget_tokens=100, budget_period="day"), 0, True
    ).by_name.values()
    ledger = SimpleNamespace(num_errors=9, spent=lambda keys: [(key, 70) for key in keys])
    keyring = SimpleNamespace(num_reloads=4, num_failed=5, entries=[ann])
    checks = SimpleNamespace(keyring=keyring)
    answers = SimpleNamespace(streams=streams)
    registry.register(ServerCollector(answers, places, threads, checks, ledger))
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
        if "build" not in sample.name
    }
    assert found == {
        ("switchyard_stream_lag_tokens", "max"): 6,
        ("switchyard_stream_lag_tokens", "mean"): 3,
        ("switchyard_streams_open",): 3,
        ("switchyard_websockets_open",): 1,
        ("switchyard_request_threads", "busy"): 3,
        ("switchyard_request_threads", "all"): 40,
        ("switchyard_ledger_errors_total",): 9,
        ("switchyard_keys_reloads_total", "done"): 4,
        ("switchyard_keys_reloads_total", "failed"): 5,
        ("switchyard_budget_tokens", "ann", "spent"): 70,
        ("switchyard_budget_tokens", "ann", "all"): 100,
    }


@pytest.mark.parametrize("gone", [None, "decode"])
def test_what_is_counted_of_a_request_has_its_own_name(gone):
    registry = CollectorRegistry()
    recorder = RequestMetrics(registry)
    account = Account([recorder])
    account.expect("m", [job("r-0"), job("r-1")], 2, False)
    account.submitted()
    account.said = {"route": "/r", "method": "POST", "status": 418, "code": "teapot"}
    account.gone = gone
    for i in range(2):
        account.note(Used(f"r-{i}", 30, 10, 20, 4 + i, "stop", None))
    account.begun -= 100
    account.answered()

    def told(name, **labels):
        return registry.get_sample_value(name, labels)

    assert told("switchyard_http_requests_total", route="/r", method="POST", status="418") == 1
    assert 100 <= told("switchyard_http_request_seconds_sum", route="/r") < 160
    assert told("switchyard_rejections_total", code="teapot") == 1
    assert told("switchyard_clients_gone_total", phase="decode") == (gone is not None)
    for kind, number in (("prompt", 30 + 20), ("cached", 10), ("completion", 9)):
        assert told("switchyard_tokens_total", key="none", kind=kind) == number
    assert told("switchyard_requests_total", key="none", model_name="m") == 1
    labels = {"model_name": "m", "engine": "0"}
    assert told("vllm:request_params_n_sum", **labels) == 2
    assert told("vllm:request_max_num_generation_tokens_sum", **labels) == 5
