"""Requests to /generate. Pure."""

from typing import Any, ClassVar

from switchyard.app.formats.text.request import OneText
from switchyard.app.request.neutral import Table
from switchyard.app.request.validation import validate


class Generate(OneText):
    settled: ClassVar[Table] = {"n": (1,)}


def generate(body: dict[str, Any]) -> Generate:
    """Parses a request from its parameters. Raises BadRequest."""
    return validate(Generate, body)
