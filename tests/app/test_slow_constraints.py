"""A constraint that is too slow, in the words of each wire format."""

import json

import pytest

from switchyard import engine
from tests.app.conftest import fails
from tests.scripted import ScriptedBackend

HELLO = [{"role": "user", "content": "Hello"}]
BODIES = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 9},
    "/generate": {"prompt": "x"},
    "/completion": {"prompt": "x"},
}
WORDS = {"/v1/messages": '"invalid_request_error"', "/v1/responses": '"invalid_prompt"'}
SLOW = "the constraint is too slow"


@pytest.fixture
def ask(make_client):
    def ask(path, num_tokens, **more):
        script = fails(*num_tokens * "x", error=engine.ConstraintTooSlow(SLOW, "constraint"))
        return make_client(ScriptedBackend(script)).post(path, json={**BODIES[path], **more})

    return ask


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("num_tokens", "is_stream"), [(3, False), (0, False), (0, True)])
def test_before_the_first_byte_it_is_a_400(ask, path, num_tokens, is_stream):
    response = ask(path, num_tokens, stream=is_stream)
    assert response.status_code == 400
    assert SLOW in response.text
    if path != "/v1/messages":
        assert "constraint_too_slow" in response.text


@pytest.mark.parametrize("path", BODIES)
def test_in_a_stream_it_is_an_error_event(ask, path):
    response = ask(path, 3, stream=True)
    assert response.status_code == 200
    told = [json.loads(line[6:]) for line in response.text.split("\n") if line[:7] == "data: {"]
    errors = [json.dumps(one) for one in told if SLOW in json.dumps(one)]
    assert errors and all("error" in one for one in errors)
    assert WORDS.get(path, '"constraint_too_slow"') in errors[0]
