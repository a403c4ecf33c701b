"""Defines the interface between a wire format and the application, and loads formats."""

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
    """How a format writes errors and, at the path that formats share, the list of models. Clients
    of formats without `Words` get OpenAI's format.
    """

    is_spoken: Callable[[], bool]  # whether the current request's client uses the format
    describe: errors.Describe
    error: Any  # the type of the body, for contracts
    models: "ModelWords | None" = None


@dataclass(frozen=True, slots=True)
class ModelWords:
    describe: Callable[[engine.Engine], dict[str, Any]]
    listed: Callable[[Sequence[dict[str, Any]]], dict[str, Any]]
    # The types of the bodies, for contracts.
    model: Any
    models: Any


@dataclass(frozen=True, slots=True)
class Format:
    name: str  # the name of its folder
    blueprint: flask.Blueprint
    words: Words | None = None


def load(names: Iterable[str]) -> tuple[Format, ...]:
    """The formats with these names. A format whose extra is not installed is left out."""
    return tuple(_load(dict.fromkeys(names)))


def spoken(formats: Iterable[Format]) -> Words | None:
    """The `Words` of the format that the current request's client uses, if that format has any."""
    every = (format.words for format in formats if format.words is not None)
    return next((words for words in every if words.is_spoken()), None)


def describe(formats: Iterable[Format], error: Exception) -> errors.Described:
    """The error in the format that the current request's client expects."""
    words = spoken(formats)
    return errors.describe(error) if words is None else words.describe(error)


def _load(names: Iterable[str]) -> Iterator[Format]:
    for name in names:
        try:
            module = importlib.import_module(f"switchyard.app.formats.{name}")
        except ModuleNotFoundError as error:
            if error.name and error.name.startswith("switchyard"):
                raise
            logger.info(
                "the wire format %s is left out: %s; install switchyard[%s]", name, error, name
            )
        else:
            yield module.FORMAT
