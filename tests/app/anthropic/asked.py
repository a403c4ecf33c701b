"""Requests of Anthropic's API, and what their answers say."""

URL = "/v1/messages"
HELLO = {"max_tokens": 2, "messages": [{"role": "user", "content": "Hello"}]}
USER = [{"role": "user", "content": "Hello"}]
CALL = {"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 1, "b": None}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "default": None}}}
TOOLS = [
    {"name": "add", "description": "Adds.", "input_schema": SCHEMA},
    {"type": "custom", "name": "sub", "input_schema": {"type": "object"}},
]


def text(what):
    return {"type": "text", "text": what}


def turn(role, *contents):
    return {"role": role, "content": list(contents)}


def error_of(response, status=400):
    assert (response.status_code, response.mimetype) == (status, "application/json")
    identifier = response.headers["X-Request-Id"]
    error = response.json["error"]
    assert response.json == {"type": "error", "error": error, "request_id": identifier}
    assert set(error) == {"type", "message"}
    return error


THINKS_AND_CALLS = (
    *("<think>", "One", " more.", "</think>", "Sure."),
    *('<tool_call>{"name": "add", "arguments": {"a": 1,', ' "b": null}}</tool_call>'),
)
