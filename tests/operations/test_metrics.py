"""/metrics and /v1/status: what they say, to whom, and how many series there are."""

import contextlib
from typing import get_args

import flask
import pytest
import requests
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from switchyard.app import SettingsError, Switchyard, read_settings
from switchyard.app.metrics import requests as request_metrics
from switchyard.app.metrics.requests import RequestMetrics
from switchyard.app.operations.account import Account, Phase
from switchyard.engine.stream import Used
from tests.conftest import wait_for
from tests.faults.conftest import SCRIPTED
from tests.operations.conftest import bearer, entry
from tests.scripted import ScriptedBackend, ticking

URL = "/v1/completions"
# What the dashboard that vLLM publishes asks for.
DASHBOARD = {
    "vllm:e2e_request_latency_seconds_bucket",
    "vllm:e2e_request_latency_seconds_count",
    "vllm:e2e_request_latency_seconds_sum",
    "vllm:generation_tokens_total",
    "vllm:inter_token_latency_seconds_bucket",
    "vllm:kv_cache_usage_perc",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:prompt_tokens_total",
    "vllm:request_decode_time_seconds_sum",
    "vllm:request_generation_tokens_bucket",
    "vllm:request_prefill_time_seconds_sum",
    "vllm:request_prompt_tokens_bucket",
    "vllm:request_queue_time_seconds_sum",
    "vllm:request_success_total",
    "vllm:time_to_first_token_seconds_bucket",
}


def series(client, headers=None):
    """Values by name and labels."""
    response = client.get("/metrics", headers=headers)
    assert response.status_code == 200, response.text
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def value(found, name, **labels):
    """The one of that name with, among others, these labels."""
    [number] = [
        number
        for (own, *rest), number in found.items()
        if own == name and labels.items() <= dict(rest).items()
    ]
    return number


def post(client, body, url=URL, **more):
    """To the end of the answer, whose status is returned."""
    with client.post(url, json={"prompt": "abc", "max_tokens": 1} | body, **more) as response:
        return response.status_code


def until(client, is_right, headers=None):
    return wait_for(lambda: is_right(found := series(client, headers)) and found)


def test_all_is_there_before_the_first_request_and_names_are_vllms(make_client):
    found = series(make_client(ScriptedBackend()))
    assert {name for name, *_ in found} >= DASHBOARD
    own = ("loading", "ready", "draining", "stopped", "recovering", "hanging")
    for state in (*own, "unloaded", "failed"):
        assert value(found, "switchyard_model_state", state=state) == (state == "ready")
    assert value(found, "switchyard_last_iteration_age_seconds") == 0  # no job is in the batch
    assert value(found, "vllm:cache_config_info") == 1
    assert value(found, "switchyard_build_info") == 1
    assert value(found, "process_open_fds") > 0


@pytest.mark.parametrize("accept", ["application/openmetrics-text; version=1.0.0", "*/*", None])
def test_the_format_is_the_same_whatever_is_accepted(make_client, accept):
    response = make_client(ScriptedBackend()).get("/metrics", headers={"Accept": accept or ""})
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert response.headers["Cache-Control"] == "no-store"
    assert "\nvllm:num_requests_running{" in response.text


def test_requests_are_counted_as_they_end(client):
    for _ in range(3):
        assert post(client, {"max_tokens": 4, "n": 2}) == 200
    assert post(client, {"max_tokens": "many"}) == 400
    for path, status in (("/v1/nothing", 404), ("/health/live", 200)):
        with client.get(path) as response:
            assert response.status_code == status
    found = until(client, lambda now: value(now, "vllm:generation_tokens_total") == 24)
    route = {"route": URL, "method": "POST"}
    assert value(found, "switchyard_http_requests_total", **route, status="200") == 3
    assert value(found, "switchyard_http_requests_total", **route, status="400") == 1
    assert value(found, "switchyard_http_requests_total", route="other", status="404") == 1
    assert value(found, "switchyard_http_request_seconds_count", route=URL) == 4
    assert value(found, "switchyard_rejections_total", code="invalid_value") == 1
    assert value(found, "vllm:request_success_total", finished_reason="length") == 6
    assert value(found, "vllm:prompt_tokens_total") == value(
        found, "switchyard_tokens_total", kind="prompt"
    )
    routes = {dict(labels).get("route") for _, *labels in found} - {None}
    assert routes == {URL, "other"}  # neither probes nor this one


def test_buckets_hold_all_that_is_not_above_them(client):
    for number in (1, 2, 3, 60):
        assert post(client, {"max_tokens": number}) == 200
    name = "vllm:request_generation_tokens"
    found = until(client, lambda now: value(now, f"{name}_count") == 4)
    below = {
        bound: value(found, f"{name}_bucket", le=bound)
        for bound in ("1.0", "2.0", "5.0", "50.0", "100.0", "+Inf")
    }
    assert below == {"1.0": 1, "2.0": 2, "5.0": 3, "50.0": 3, "100.0": 4, "+Inf": 4}
    assert value(found, f"{name}_sum") == 66


def test_who_may_ask(make_client, make_keyed, keys_file):
    assert make_client(ScriptedBackend(), metrics="off").get("/metrics").status_code == 404
    opened = make_keyed(ScriptedBackend(), metrics="open")
    assert opened.get("/metrics").status_code == 200
    with pytest.raises(SettingsError, match="metrics: 'key' needs a keys_file"):
        read_settings(metrics="key")


def test_keys_are_counted_by_name_and_what_comes_from_clients_makes_no_series(
    make_keyed, keys_file
):
    client = make_keyed(ScriptedBackend())
    prom = bearer("prom")

    def ask(i):
        for path in (f"/v1/{i}", f"/v1/models/{i}"):
            client.get(path, headers=bearer("ann")).close()
        assert post(client, {"model": f"m{i}"}, headers=bearer("ann")) == 404
        elsewhere = {"REMOTE_ADDR": "10.0.0.9"}
        post(client, {}, headers=bearer(f"made-up-{i}"), environ_overrides=elsewhere)
        headers = {**bearer("ann"), "User-Agent": f"agent{i}", "X-Request-Id": f"id{i}"}
        assert post(client, {"prompt": f"x{i}", "user": f"u{i}"}, headers=headers) == 200

    for i in range(30):  # wrong keys of one address are refused in another way from 20 on
        ask(i)
    before = until(client, lambda now: value(now, "vllm:generation_tokens_total") == 30, prom)
    for i in range(30, 130):
        ask(i)
    after = until(client, lambda now: value(now, "vllm:generation_tokens_total") == 130, prom)
    assert after.keys() == before.keys()
    assert value(after, "switchyard_tokens_total", key="ann", kind="completion") == 130
    assert value(after, "switchyard_rejections_total", code="too_many_failures") == 110


def test_keys_beyond_the_most_share_a_label(make_keyed, keys_file, monkeypatch):
    monkeypatch.setattr(request_metrics, "MAX_KEYS", 2)
    names = ["k0", "k1", "k2", "k3"]
    keys_file.write(*map(entry, [*names, "prom"]))
    client = make_keyed(ScriptedBackend())
    for name in [*names, "k0"]:
        assert post(client, {}, headers=bearer(name)) == 200
    found = until(
        client, lambda now: value(now, "vllm:generation_tokens_total") == 5, bearer("prom")
    )
    counted = {
        name: value(found, "switchyard_requests_total", key=name) for name in ("k0", "k1", "other")
    }
    assert counted == {"k0": 2, "k1": 1, "other": 2}


def begun(client, **more):
    """A stream whose first piece has come."""
    body = {"prompt": "x", "max_tokens": 99, "stream": True}
    response = client.post(URL, json=body, buffered=False, **more)
    next(response.response)
    return response


def test_a_client_that_leaves_is_counted_by_what_its_job_was_at(make_client):
    client = make_client(ScriptedBackend(ticking))
    begun(client).close()
    name = "switchyard_clients_gone_total"
    found = until(client, lambda now: value(now, name, phase="decode") == 1)
    assert value(found, name, phase="pending") == value(found, name, phase="prefill") == 0


def test_a_client_that_leaves_before_the_text_has_left_in_the_queue(make_client, gate):
    client = make_client(ScriptedBackend(gate=gate), heartbeat=0.05)
    begun(client).close()
    gate.open()
    name = "switchyard_clients_gone_total"
    until(client, lambda now: value(now, name, phase="pending") == 1)


def test_a_client_that_stops_reading_what_has_ended_is_none_that_leaves(make_client, gate):
    client = make_client(ScriptedBackend(gate=gate), resume_timeout=60)
    gate.step(2)
    response = begun(client)
    gate.open()
    [kept] = client.application.extensions["switchyard"].answers.transcripts._kept
    assert client.get(f"/v1/streams/{kept}").get_data().endswith(b"[DONE]\n\n")
    response.close()
    found = series(client)
    name = "switchyard_clients_gone_total"
    assert sum(value(found, name, phase=phase) for phase in get_args(Phase)) == 0


def test_open_streams_and_how_far_they_are_behind_are_told(make_client):
    client = make_client(ScriptedBackend(ticking))
    responses = [begun(client), begun(client)]
    name = "switchyard_stream_lag_tokens"
    found = until(client, lambda now: value(now, name, stat="max") > 20)
    assert value(found, "switchyard_streams_open") == 2
    assert 0 < value(found, name, stat="mean") <= value(found, name, stat="max")
    for response in responses:
        response.close()
    found = series(client)
    assert value(found, "switchyard_streams_open") == value(found, name, stat="max") == 0


def test_a_wrong_file_of_keys_is_counted(make_keyed, keys_file, clock):
    client = make_keyed(ScriptedBackend())
    keyring = client.application.extensions["switchyard"].checks.keyring
    keys_file.path.write_text("[[keys]\n")
    clock.now += 10
    keyring.renew()
    found = series(client, bearer("prom"))
    assert value(found, "switchyard_keys_reloads_total", result="failed") == 1
    assert value(found, "switchyard_keys_reloads_total", result="done") == 0


def test_the_status_is_whole_without_metrics(start):
    server = start(SCRIPTED, metrics="off").wait_until_ready()
    told = requests.get(f"{server.url}/v1/status", timeout=30).json()
    assert told.keys() == {
        *("object", "version", "uptime", "models", "streams", "websockets", "threads")
    }
    assert 1 <= told["threads"]["busy"] < told["threads"]["all"]
    assert server.stop() == 0


def test_what_a_host_application_generates_counts_for_it(model_path, tmp_path):
    app = flask.Flask("host")
    host = Switchyard(app, model=model_path, name="scripted", ledger=str(tmp_path / "ledger"))
    try:
        with app.app_context():
            assert host.generate("abc", max_tokens=3, ignore_eos=True).completion_tokens == 3
            with contextlib.closing(host.stream("abc", max_tokens=99)) as stream:
                next(stream)
        client = app.test_client()
        one = ("switchyard_requests_total", ("key", "host"), ("model_name", "scripted"))
        found = until(client, lambda now: now.get(one) == 2)
        assert value(found, "switchyard_tokens_total", key="host", kind="completion") >= 3
        assert not any(name == "switchyard_http_requests_total" for name, *_ in found)
        for _ in range(100):  # each waits for the ledger, but not long
            rows = client.get("/v1/usage?group_by=key").json["data"]
            if [row["requests"] for row in rows] == [2]:
                break
        assert [(row["key"], row["requests"]) for row in rows] == [("host", 2)]
    finally:
        assert host.models.close(timeout=20)
        app.extensions["switchyard"].ledger.close()


@pytest.mark.parametrize(
    ("status", "numbers", "phase"),
    [
        (499, (0, 0, 0), "pending"),
        (499, (2, 0, 0), "prefill"),  # all of its prompt was in the cache
        (499, (0, 2, 0), "prefill"),
        (499, (0, 2, 1), "decode"),
        (200, (0, 2, 1), None),
    ],
)
def test_a_request_that_is_answered_by_a_client_s_leaving_counts_for_what_it_had(
    status, numbers, phase
):
    registry, account = CollectorRegistry(), Account()
    account.said = {"route": "/", "method": "POST", "status": status}
    account.used = {"r-0": Used("r-0", 2, *numbers)}
    RequestMetrics(registry).end(account)
    name = "switchyard_clients_gone_total"
    counts = {one: registry.get_sample_value(name, {"phase": one}) for one in get_args(Phase)}
    assert {one for one, count in counts.items() if count} == ({phase} if phase else set())


class Panic(BaseException):
    """As pyo3's PanicException, which Flask handles as no error."""


def test_a_request_that_gets_no_answer_counts_as_a_500(make_client, monkeypatch):
    def panic():
        raise Panic

    client = make_client(ScriptedBackend())
    endpoint, _ = client.application.url_map.bind("").match(URL, "POST")
    monkeypatch.setitem(client.application.view_functions, endpoint, panic)
    with pytest.raises(Panic):
        client.post(URL, json={})
    name = "switchyard_http_requests_total"
    assert value(series(client), name, route=URL, method="POST", status="500") == 1
