"""Requests of many kinds of clients, and the text of an answer to each."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}}
FUNCTION = {"name": "look_up", "parameters": {**PARAMETERS, "additionalProperties": False}}
TOOL = {"type": "function", "function": FUNCTION}


@dataclass(frozen=True)
class Kind:
    path: str
    body: Callable[[str, int], dict[str, Any]]  # makes a body from a question and max tokens
    text: Callable[[Any], str]  # text of a whole body, or of a stream's event
    is_streamed: bool
    end: Callable[[Any], str | None]  # finish reason, if a body or an event has one


def messages(question):
    return [{"role": "user", "content": question}]


def chat(**more):
    return lambda question, limit: {"messages": messages(question), "max_tokens": limit, **more}


def prompt(limit="max_tokens", name="prompt", **more):
    return lambda question, number: {name: question, limit: number, **more}


def first(value, *path):
    """The value at a path of names and indices; None without one."""
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def at(*path):
    return lambda value: first(value, *path) or ""


def calls(of):
    def text(value):
        found = first(value, "choices", 0, of, "tool_calls") or ()
        return "".join(call["function"].get("arguments", "") for call in found)

    return text


def response_end(value):
    of = value.get("response", value)
    status = of.get("status")
    return status if status not in (None, "in_progress", "queued") else None


CHOICE_END = at("choices", 0, "finish_reason")
TOOLS = {"tools": [TOOL], "tool_choice": "required"}
FORM = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}

KINDS = {
    "chat": Kind(
        "/v1/chat/completions",
        chat(),
        at("choices", 0, "message", "content"),
        False,
        CHOICE_END,
    ),
    "chat, streamed": Kind(
        "/v1/chat/completions",
        chat(stream=True),
        at("choices", 0, "delta", "content"),
        True,
        CHOICE_END,
    ),
    "form": Kind(
        "/v1/chat/completions",
        chat(**FORM),
        at("choices", 0, "message", "content"),
        False,
        CHOICE_END,
    ),
    "tools, streamed": Kind(
        "/v1/chat/completions", chat(stream=True, **TOOLS), calls("delta"), True, CHOICE_END
    ),
    "tools": Kind("/v1/chat/completions", chat(**TOOLS), calls("message"), False, CHOICE_END),
    "completion": Kind("/v1/completions", prompt(), at("choices", 0, "text"), False, CHOICE_END),
    "completion, streamed": Kind(
        "/v1/completions", prompt(stream=True), at("choices", 0, "text"), True, CHOICE_END
    ),
    "response": Kind(
        "/v1/responses",
        prompt("max_output_tokens", "input"),
        at("output", 0, "content", 0, "text"),
        False,
        response_end,
    ),
    "response, streamed": Kind(
        "/v1/responses",
        prompt("max_output_tokens", "input", stream=True),
        lambda e: e["delta"] if e["type"] == "response.output_text.delta" else "",
        True,
        response_end,
    ),
    "message": Kind(
        "/v1/messages",
        chat(model="demo"),
        at("content", 0, "text"),
        False,
        at("stop_reason"),
    ),
    "message, streamed": Kind(
        "/v1/messages",
        chat(model="demo", stream=True),
        at("delta", "text"),
        True,
        at("delta", "stop_reason"),
    ),
    "generate, streamed": Kind(
        "/generate", prompt(stream=True), at("text"), True, at("finish_reason")
    ),
    "kobold, streamed": Kind(
        "/api/extra/generate/stream", prompt("max_length"), at("token"), True, at("finish_reason")
    ),
    "llama.cpp": Kind("/completion", prompt("n_predict"), at("content"), False, at("stop_type")),
}


def events(data):
    """The JSON of a stream's events."""
    for line in data.decode().split("\n"):
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def read(kind, data):
    """Returns text and end of an answer, or an error's body. Raises ValueError for other data."""
    parts = list(events(data)) if kind.is_streamed else [json.loads(data)]
    for part in parts:
        error = part.get("error") or first(part, "response", "error")
        if error:
            return None, error
    ends = [end for part in parts if (end := kind.end(part))]
    if not ends:
        raise ValueError(f"an answer without an end: {data[-200:]!r}")
    return "".join(kind.text(part) or "" for part in parts), ends[-1]
