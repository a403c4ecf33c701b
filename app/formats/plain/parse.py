"""Requests of /generate. Pure."""

from typing import Any, ClassVar

from switchyard.app.formats.text.request import Text
from switchyard.app.request.validation import validate


class Generate(Text):
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {**Text.neutral, "n": (1,)}


def generate(body: dict[str, Any]) -> Generate:
    """Raises BadRequest."""
    return validate(Generate, body)
