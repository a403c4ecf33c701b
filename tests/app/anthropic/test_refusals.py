"""What /v1/messages refuses, and its errors, in Anthropic's words."""

import re
from unittest.mock import Mock

import pytest

from switchyard import engine
from switchyard.app.exceptions import TimedOut
from tests.app.anthropic.asked import CALL, HELLO, TOOLS, URL, USER, error_of, text, turn
from tests.scripted import ScriptedBackend

pytestmark = pytest.mark.both_ways
TEXTS = [text("x")] * 10_000

MUST_FOLLOW = "messages.0: the results of its calls must follow"
BUDGET = "thinking: budget_tokens is required with type enabled"


def blocks(*contents, role="user"):
    return {"messages": [turn(role, *contents)]}


def result(content):
    return {"type": "tool_result", "tool_use_id": "a", "content": content}


def choice(**more):
    return {"tool_choice": {"type": "tool", **more}, "tools": TOOLS}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"max_tokens": None}, "missing parameter: max_tokens"),
        ({"messages": None}, "missing parameter: messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["x"]}, "messages.0: must be a message of role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0: must be a message of role"),
        ({"messages": [{"role": "user"}]}, "missing parameter: messages.0.content"),
        (blocks(CALL, role="assistant"), MUST_FOLLOW),
        (blocks(text("x"), CALL, role="assistant"), MUST_FOLLOW),
        (blocks(CALL), "messages.0.content.0: must be a block of type"),
        ({"messages": USER * 2049}, "messages: must have at most 2048 items"),
        (blocks({"type": "image", "source": {}}), "messages.0.content.0: must be a block of type"),
        (blocks({"type": "thinking", "thinking": "x"}), "messages.0.content.0: must be a block"),
        (blocks(*TEXTS, TEXTS[0]), "messages: must have at most 10000"),
        (blocks(result([{"type": "audio"}])), "messages.0.content.0.content.0: must be a block"),
        (blocks(result(TEXTS)), "messages: must have at most 10000"),
        ({"system": 5}, "system: input should be a valid string"),
        ({"system": [{"type": "image"}]}, "system.0.type"),
        ({"cache_control": {"type": "eternal"}}, "cache_control.type"),
        ({"stop_sequences": 5}, "stop_sequences"),
        ({"temperature": 9}, "temperature"),
        ({"tools": [{"name": "add"}]}, "missing parameter: tools.0.input_schema"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools: two tools have the name add"),
        ({"tool_choice": {"type": "any"}}, "tool_choice needs tools"),
        (choice(), "tool_choice: name is required with type"),
        (choice(name="x"), "tool_choice: no tool has the name x"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {"type": "enabled"}}, BUDGET),
        ({"thinking": {"type": "disabled", "budget_tokens": 9}}, BUDGET),
        ({"output_config": {"effort": "least"}}, "output_config.effort"),
        ({"container": "x"}, "container is not supported"),
        ({"mcp_servers": [{}]}, "mcp_servers is not supported"),
        ({"n": 2}, "n is not supported, except for 1"),
        ({"timings": True}, "unknown parameter: timings"),
        ({"stream": True, "return_progress": True}, "unknown parameter: return_progress"),
        ({"metadata": {"name": "x"}}, "unknown parameter: metadata.name"),
        ({"stream_options": {"continuous_usage_stats": True}}, "stream_options is not supported"),
    ],
)
def test_what_is_wrong_is_named(message, change, says):
    asked = message({**HELLO, **change})
    error = error_of(asked.response)
    assert error["type"] == "invalid_request_error" and error["message"].startswith(says)
    assert not asked.backend.enqueued


def test_what_does_not_fit_the_context_is_a_bad_request(message):
    asked = message({**HELLO, "max_tokens": 5000}, clamp_max_tokens=False)
    says = r"input length and `max_tokens` exceed context limit: \d+ \+ 5000 > 2048"
    assert re.match(says, error_of(asked.response)["message"])
    long = [{"role": "user", "content": "word " * 5000}]
    error = error_of(asked.again({**HELLO, "messages": long}).response)
    assert re.fullmatch(r"prompt is too long: \d+ tokens > 2048 maximum", error["message"])


def test_a_prompt_that_leaves_no_room_for_an_answer_is_too_long(message):
    """For one token there is."""

    def body(number):
        return {"messages": [{"role": "user", "content": "a" + " a" * number}]}

    def count(number):
        return asked.again(body(number), f"{URL}/count_tokens").response.json["input_tokens"]

    asked = message(HELLO)
    most = 2048 - count(0)
    assert count(most) == 2048
    error = error_of(asked.again({**body(most), "max_tokens": 1}).response)
    assert error["message"] == "prompt is too long: 2048 tokens > 2048 maximum"
    response = asked.again({**body(most - 1), "max_tokens": 1}).response
    assert response.json["usage"]["input_tokens"] == 2047


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", URL, 405, "invalid_request_error"),
        ("POST", f"{URL}/batches", 404, "not_found_error"),
        ("GET", "/v1/models/nothing", 404, "not_found_error"),
        ("GET", "/nothing", 404, "not_found_error"),
    ],
)
def test_errors_that_no_view_sees_have_the_shape_too(client, method, path, status, kind):
    headers = {} if path.startswith(URL) else {"anthropic-version": "2023-06-01"}
    response = client.open(path, method=method, headers=headers)
    assert error_of(response, status)["type"] == kind


def test_a_body_that_is_too_long_is_too_large(message):
    response = message(HELLO, max_body_bytes=10).response
    assert error_of(response, 413)["type"] == "request_too_large"


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (TimedOut("no", "total_timeout"), 408, "timeout_error"),
        (engine.Full("no", 1.0), 429, "rate_limit_error"),
        (engine.Draining("no", 1.0), 529, "overloaded_error"),
        (engine.Dead("no"), 503, "api_error"),  # no overload, at which clients try again
    ],
    ids=repr,
)
def test_each_error_has_its_type(client, error, status, kind):
    client.models.lease = Mock(side_effect=error)
    response = client.post(URL, json=HELLO)
    assert error_of(response, status)["type"] == kind
    assert "Retry-After" in response.headers or status in (408, 503)


def test_a_model_that_loads_is_told_without_its_context(make_client):
    backend = ScriptedBackend()
    backend.opening.clear()
    try:
        client = make_client(backend, wait=False)
        response = client.get("/v1/models", headers={"anthropic-version": "2023-06-01"})
        assert [model["max_tokens"] for model in response.json["data"]] == [None]
    finally:
        backend.opening.set()


def test_a_thread_is_refused_as_the_sdk_expects(message):
    """Which then sends the whole conversation by itself."""
    response = message({**HELLO, "thread": {"type": "create"}}).response
    told = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert (response.status_code, response.json["error"]["details"]) == (400, told)
