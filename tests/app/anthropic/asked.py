"""Requests of Anthropic's API, and what their answers say."""

import json

from tests.scripted import says

URL = "/v1/messages"
HELLO = {"max_tokens": 2, "messages": [{"role": "user", "content": "Hello"}]}
USER = [{"role": "user", "content": "Hello"}]
CALL = {"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 1, "b": None}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "default": None}}}
TOOLS = [
    {"name": "add", "description": "Adds.", "input_schema": SCHEMA},
    {"type": "custom", "name": "sub", "input_schema": {"type": "object"}},
]


def events(response):
    """The bodies of a stream of named events, each named by its type."""
    assert response.status_code == 200 and response.mimetype == "text/event-stream"
    bodies = []
    for event in response.get_data(as_text=True).removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        bodies.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {bodies[-1]['type']}"
    return bodies


def error_of(response, status=400):
    assert response.status_code == status and response.mimetype == "application/json"
    assert set(response.json) == {"type", "error", "request_id"}
    assert response.json["type"] == "error"
    assert response.headers["X-Request-Id"] == response.json["request_id"]
    assert set(response.json["error"]) == {"type", "message"}
    return response.json["error"]


def prompt_of(client, backend):
    [job] = backend.enqueued
    return client.models.get().tokenizer.decode(job.prompt)


THINKS_AND_CALLS = says(
    "<think>",
    "One",
    " more.",
    "</think>",
    "Sure.",
    '<tool_call>{"name": "add", "arguments": {"a": 1,',
    ' "b": null}}</tool_call>',
)
