"""What a conversation has of tokens, before it is asked."""

import pytest

HELLO = [{"role": "user", "content": "Hello, how are you?"}]
TOOL = {"name": "f", "description": "Does nothing.", "parameters": {"type": "object"}}
# By the endpoint: the part of a body that asks, and the same with a tool.
ASKED = {
    "/v1/chat/completions": (
        {"messages": HELLO},
        {"messages": HELLO, "tools": [{"type": "function", "function": TOOL}]},
    ),
    "/v1/responses": ({"input": HELLO}, {"input": HELLO, "tools": [{"type": "function", **TOOL}]}),
}
WRONG = {"/v1/chat/completions": ({"messages": []}, "messages"), "/v1/responses": ({}, "input")}


@pytest.mark.parametrize("path", ASKED)
def test_the_count_is_that_of_the_usage(client, path):
    for body in ASKED[path]:
        counted = client.post(f"{path}/input_tokens", json=body).json
        usage = client.post(path, json=body).json["usage"]
        tokens = usage.get("input_tokens", usage.get("prompt_tokens"))
        assert counted == {"object": "response.input_tokens", "input_tokens": tokens}


@pytest.mark.parametrize("path", ASKED)
def test_it_is_counted_while_the_model_loads_and_beyond_the_context(loading, path):
    text = [{"role": "user", "content": "Hello there. " * 2000}]
    asked = {next(iter(ASKED[path][0])): text}
    assert loading().post(f"{path}/input_tokens", json=asked).json["input_tokens"] > 4000


@pytest.mark.parametrize("path", ASKED)
def test_what_is_wrong_is_named_as_the_endpoint_names_it(client, path):
    body, param = WRONG[path]
    response = client.post(f"{path}/input_tokens", json=body)
    assert (response.status_code, response.json["error"]["param"]) == (400, param)
    asked = {**ASKED[path][0], "model": "other"}
    assert client.post(f"{path}/input_tokens", json=asked).status_code == 404
    text = [{"role": "user", "content": "x y " * 70_000}]
    response = client.post(f"{path}/input_tokens", json={param: text})
    assert response.json["error"]["code"] == "context_length_exceeded"
    assert response.json["error"]["param"] == param
