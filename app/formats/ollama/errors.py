"""Errors in the format of Ollama's API."""

import re

import flask
from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard import engine
from switchyard.app import errors
from switchyard.app.errors import Described

BLUEPRINT = "switchyard_ollama"  # the blueprint of the format's views

# The format's paths, even for methods that they don't allow.
_PATH = re.compile(
    r".*/api/(version|tags|ps|show|generate|chat|embed|embeddings|pull|push|create|copy|delete"
    r"|blobs/[^/]*)"
)


class OllamaErrorBody(TypedDict):
    error: str


def is_spoken() -> bool:
    """Whether the client of the current request uses Ollama's API."""
    # Views of this format, at any path.
    is_view = BLUEPRINT in (flask.request.blueprint or "").split(".")
    return is_view or _PATH.fullmatch(flask.request.path) is not None


def describe(error: Exception) -> Described:
    """The kind of an error, and the body of its response."""
    kind, body = errors.describe(error)
    message, param = body["error"]["message"], body["error"]["param"]
    if isinstance(error, engine.ModelNotFound):  # clients recognize the error by these words
        message = message.replace("does not exist", "not found")
    elif param is not None and param not in message:  # the body has no other field for it
        message = f"{param}: {message}"
    return kind, {"error": message}
