"""What a wire format is to the application, and those that it has."""

import importlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import flask

from switchyard import engine
from switchyard.app import errors

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Words:
    """A format's own for what all have in common, errors and the models that are served. Where a
    client speaks none of these formats, they are OpenAI's.
    """

    is_spoken: Callable[[], bool]  # by the client of the current request
    describe: errors.Describe
    describe_model: Callable[[engine.Engine], dict[str, Any]]
    list_models: Callable[[Sequence[dict[str, Any]]], dict[str, Any]]
    # The types of what these make.
    error: Any
    model: Any
    models: Any


@dataclass(frozen=True, slots=True)
class Format:
    name: str  # its folder's
    blueprint: flask.Blueprint
    words: Words | None = None


def load(names: Iterable[str]) -> tuple[Format, ...]:
    """Those of these names, but for one whose extra is not installed."""
    return tuple(_load(dict.fromkeys(names)))


def spoken(formats: Iterable[Format]) -> Words | None:
    """The words of the format that the client of the current request speaks, if it has any."""
    every = (format.words for format in formats if format.words is not None)
    return next((words for words in every if words.is_spoken()), None)


def describe(formats: Iterable[Format], error: Exception) -> errors.Described:
    """In the words of the client of the current request."""
    words = spoken(formats)
    return errors.describe(error) if words is None else words.describe(error)


def _load(names: Iterable[str]) -> Iterator[Format]:
    for name in names:
        try:
            module = importlib.import_module(f"switchyard.app.formats.{name}")
        except ModuleNotFoundError as error:
            if error.name and error.name.startswith("switchyard"):
                raise
            logger.warning(
                "the wire format %s is left out: %s; install switchyard[%s]", name, error, name
            )
        else:
            yield module.FORMAT
