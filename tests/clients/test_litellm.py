"""litellm, on both routes that it knows: the answers, and its own class of error."""

import json

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.clients

ANSWER = "Hello! I am Switchyard's demo model."
both_routes = pytest.mark.parametrize("route", ["openai", "anthropic"])


@pytest.fixture(scope="module")
def calls(run, server):
    _, output = run(ROOT / "tests" / "clients" / "litellm_calls.py", server.url)
    return json.loads(output.splitlines()[-1])


@both_routes
@pytest.mark.parametrize("how", ["whole", "streamed"])
def test_litellm_gets_an_answer(calls, route, how):
    text, finish_reason, num_tokens = calls[route][how]
    assert text.startswith(ANSWER)
    assert finish_reason == "stop"
    assert num_tokens == 37


@both_routes
@pytest.mark.parametrize("how", ["refused", "refused_stream"])
def test_litellm_knows_the_error_of_a_prompt_that_is_too_long(calls, route, how):
    name, status, message = calls[route][how]
    assert (name, status) == ("ContextWindowExceededError", 400), message
