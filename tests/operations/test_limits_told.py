"""What answers tell of a key's limits."""

from datetime import UTC, datetime

import flask
import pytest

from switchyard.app.operations import guard
from switchyard.app.operations.keys import parse_keys
from switchyard.app.operations.limits import Quotas
from tests.operations.conftest import Clock, bearer, entry
from tests.scripted import ScriptedBackend


@pytest.mark.parametrize(
    ("path", "headers", "is_anthropics"),
    [
        ("/v1/messages", {}, True),
        ("/llm/v1/messages/count_tokens", {}, True),
        ("/v1/models", {"anthropic-version": "2023-06-01"}, True),
        ("/v1/models", {}, False),
    ],
)
def test_anthropics_clients_are_told_in_utc_when_a_limit_is_whole_again(
    zone, monkeypatch, path, headers, is_anthropics
):
    class Frozen(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.fromtimestamp(1_796_083_199, tz)  # 2026-11-30, before midnight

    monkeypatch.setattr(guard, "datetime", Frozen)
    assert Frozen.now(UTC).hour == 23
    [key] = parse_keys(entry("ann", rpm=60, tpm=100), 0).by_name.values()
    quota = Quotas(Clock()).of(key)
    for _ in range(3):
        quota.count_request()
    quota.tokens.owe(150)
    with flask.Flask("host").test_request_context(path, headers=headers):
        told = dict(guard._told(quota, flask.request))
    openai = {name: value for name, value in told.items() if name.startswith("x-")}
    assert openai == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "57",
        "x-ratelimit-reset-requests": "3s",
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "1m30s",
    }
    anthropics = {name: value for name, value in told.items() if name not in openai}
    expected = {
        "anthropic-ratelimit-requests-limit": "60",
        "anthropic-ratelimit-requests-remaining": "57",
        "anthropic-ratelimit-requests-reset": "2026-12-01T00:00:02Z",
        "anthropic-ratelimit-tokens-limit": "100",
        "anthropic-ratelimit-tokens-remaining": "0",
        "anthropic-ratelimit-tokens-reset": "2026-12-01T00:01:29Z",
    }
    assert anthropics == (expected if is_anthropics else {})


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_limit_of_new_tokens_is_told_by_the_name_that_the_request_has(
    make_keyed, keys_file, is_cut
):
    keys_file.write(entry("ann", max_tokens=6))
    client = make_keyed(ScriptedBackend(), clamp_max_tokens=is_cut)
    body = {"input": "x", "max_output_tokens": 20}
    response = client.post("/v1/responses", json=body, headers=bearer("ann"))
    if is_cut:
        assert response.headers["X-Switchyard-Ignored"] == "max_output_tokens"
    else:
        error = response.json["error"]
        assert error["param"] == "max_output_tokens"
        assert error["message"].startswith("max_output_tokens: this API key allows at most 6")
