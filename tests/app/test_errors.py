"""Each error has its status and the API's shape."""

import pytest

from switchyard import engine
from switchyard.app import errors
from switchyard.app.exceptions import (
    BadRequest,
    BodyTimeout,
    BudgetSpent,
    ClientGone,
    LimitReached,
    NotPermitted,
    TimedOut,
    Unauthorized,
)
from tests.app.conftest import wait_until_empty
from tests.app.refused import COMPLETIONS, error_of
from tests.scripted import ScriptedBackend


@pytest.mark.parameter("model")
def test_an_unknown_model_is_named(client):
    error = error_of(client.post(COMPLETIONS, json={"prompt": "x", "model": "gpt"}), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "'gpt'" in error["message"]
    error_of(client.get("/v1/models/gpt"), 404)


def test_unknown_paths_and_methods_are_refused_in_the_same_shape(client):
    error_of(client.get("/v1/nothing"), 404)
    response = client.get(COMPLETIONS)
    error_of(response, 405)
    assert "POST" in response.headers["Allow"]


def test_embeddings_are_not_offered_and_it_is_no_use_to_try_again(client):
    response = client.post("/v1/embeddings", json={"model": "scripted", "input": "x"})
    assert "embeddings" in error_of(response, 501)["message"]
    assert response.headers["x-should-retry"] == "false"
    error_of(client.get("/v1/embeddings"), 405)


def test_an_unexpected_failure_is_a_500_in_the_same_shape(client, caplog):
    client.models.lease = lambda *_: 1 / 0
    error = error_of(client.post(COMPLETIONS, json={"prompt": "x"}), 500)
    assert error["type"] == "server_error"
    assert "ZeroDivisionError" not in error["message"] and "division" not in error["message"]
    assert "ZeroDivisionError" in caplog.text


def test_a_full_server_answers_429_with_retry_after(make_client, gate):
    client = make_client(ScriptedBackend(gate=gate), max_batch_size=1, max_pending=0)
    client.models.get().submit([engine.Job("a", (1,), 1)])
    response = client.post(COMPLETIONS, json={"prompt": "x"})
    error = error_of(response, 429)
    assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
    assert int(response.headers["Retry-After"]) >= 1
    gate.open()
    wait_until_empty(client)


def test_a_server_that_loads_answers_503_with_retry_after(loading):
    response = loading().post(COMPLETIONS, json={"prompt": "x"})
    assert error_of(response, 503)["message"] == "model scripted is loading"
    assert "Retry-After" in response.headers


def test_every_engine_error_has_a_status():
    def leaves(kind):
        subclasses = kind.__subclasses__()
        return [leaf for sub in subclasses for leaf in leaves(sub)] if subclasses else [kind]

    kinds = errors.KINDS.keys()
    assert all(not kinds.isdisjoint(leaf.__mro__) for leaf in leaves(engine.EngineError))


@pytest.mark.parametrize(
    ("seconds", "header"), [(0.0, "1"), (0.1, "1"), (7.2, "8"), (1000.0, "120")]
)
def test_retry_after_is_the_engines_estimate_within_what_clients_obey(seconds, header):
    for kind, status in ((engine.Full, 429), (engine.Loading, 503), (engine.Draining, 503)):
        described, _ = errors.describe(kind("not now", seconds))
        assert described.status == status
        assert described.headers == {"Retry-After": header}


@pytest.mark.parametrize(("seconds", "told"), [(0.0001, ("1", "1")), (1.0011, ("2", "1002"))])
def test_a_client_that_waits_as_many_milliseconds_as_it_is_told_is_not_too_early(seconds, told):
    headers = errors.describe(LimitReached("at its limit", seconds))[0].headers
    assert (headers["Retry-After"], headers["retry-after-ms"]) == told


def test_a_prompt_that_is_too_long_for_something_else_has_a_message_of_its_own():
    error = engine.PromptTooLong("negative_prompt: of 9 tokens", "negative_prompt")
    assert errors.describe(error)[1]["error"]["message"] == "negative_prompt: of 9 tokens"


@pytest.mark.parametrize("kind", [engine.Dead, engine.Stalled, engine.ModelError, engine.JobFailed])
def test_an_error_that_others_see_names_no_response(kind):
    body = errors.describe(kind(f"request cmpl-{'0a' * 16}-0: no luck"))[1]
    assert body["error"]["message"] == "request cmpl-…-0: no luck"


def test_clients_try_again_unless_it_is_no_use():
    def is_no_use(error):
        return "x-should-retry" in errors.describe(error)[0].headers

    assert {kind for kind in errors.KINDS if is_no_use(kind("no"))} == {
        *(engine.NoRoom, engine.LoadUnderWay, engine.NotOurs),
        *(engine.JobFailed, engine.BatchFailed, engine.Closed),
    }
    assert all(map(is_no_use, [Unauthorized(), NotPermitted("no"), BudgetSpent("no")]))
    assert not any(map(is_no_use, [BodyTimeout("no"), TimedOut("no", "queue_timeout")]))
    assert all(is_no_use(TimedOut("no", f"{name}_timeout")) for name in ("first_token", "total"))


INVALID, SERVER, RATE = "invalid_request_error", "server_error", "rate_limit_error"
OVERLOADED = (engine.Loading, engine.Stalled, engine.Draining)


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (engine.ModelNotFound("no"), 404, INVALID, "model_not_found"),
        (engine.InvalidJob("no"), 400, INVALID, "invalid_value"),
        (engine.ConstraintTooSlow("no"), 400, INVALID, "constraint_too_slow"),
        (engine.PromptTooLong("no"), 400, INVALID, "context_length_exceeded"),
        (engine.Full("no"), 429, RATE, "queue_full"),
        *((kind("no"), 503, SERVER, "overloaded") for kind in OVERLOADED),
        (engine.Unloaded("no"), 503, SERVER, "model_unloaded"),
        (engine.NoRoom("no"), 409, INVALID, "no_memory"),
        (engine.LoadUnderWay("no"), 409, INVALID, "load_under_way"),
        (engine.NotOurs("no"), 501, INVALID, "shared_engine"),
        (engine.Dead("no"), 503, SERVER, "model_failed"),
        (engine.ModelError("no"), 503, SERVER, "model_failed"),
        (engine.JobFailed("no"), 500, SERVER, "job_failed"),
        (engine.BatchFailed("no"), 500, SERVER, "batch_failed"),
        (engine.Closed("no"), 503, SERVER, "shutting_down"),
        (BadRequest("no"), 400, INVALID, "invalid_value"),
        (BadRequest("no", None, "invalid_json"), 400, INVALID, "invalid_json"),
        (Unauthorized(), 401, INVALID, "invalid_api_key"),
        (NotPermitted("no"), 403, "permission_error", "insufficient_permissions"),
        (BodyTimeout("no"), 408, "timeout_error", "body_timeout"),
        (TimedOut("no", "total_timeout"), 408, "timeout_error", "total_timeout"),
        (BudgetSpent("no"), 429, "insufficient_quota", "insufficient_quota"),
        (LimitReached("no", 1.0), 429, RATE, "rate_limit_exceeded"),
        (LimitReached("no", 1.0, "too_many_failures"), 429, RATE, "too_many_failures"),
        (ClientGone(), 499, INVALID, "client_gone"),
        (ZeroDivisionError(), 500, SERVER, "internal_error"),
    ],
)
def test_each_kind_of_error_has_its_status_type_and_code(error, status, kind, code):
    described, body = errors.describe(error)
    assert (described.status, described.type, described.code) == (status, kind, code)
    assert (body["error"]["type"], body["error"]["code"]) == (kind, code)


@pytest.mark.parametrize("error", [BadRequest, engine.InvalidJob, engine.ModelError])
def test_an_error_names_the_parameter_at_fault(error):
    assert errors.describe(error("no", "stop"))[1]["error"]["param"] == "stop"


@pytest.mark.parametrize(
    ("new_tokens", "is_whole", "asked"),
    [
        (0, True, "the prompt has 9 tokens"),
        (0, False, "the prompt has at least 9 tokens"),
        (5, True, "you requested 14 tokens (9 in the prompt, 5 in the completion)"),
    ],
)
def test_a_prompt_that_is_too_long_is_told_its_length(new_tokens, is_whole, asked):
    error = engine.PromptTooLong("no", "prompt", 9, new_tokens, 8, is_whole)
    message = errors.describe(error)[1]["error"]["message"]
    assert message == (
        f"This model's maximum context length is 8 tokens. However, {asked}. Please reduce their"
        " number."
    )
    assert vars(errors.read_too_long(message, "prompt")) == vars(error)
