"""Reads the format of calls from what a chat template writes for known calls. Pure."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from switchyard.app.parts.call_formats import (
    FORMATS,
    TAG,
    CallFormat,
    of_bare_json,
    of_json,
    of_name,
)

_UNIT = re.compile(rf"{TAG.pattern}|(?s:.)")  # a tag or a single character
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class KnownCall:
    """A call that was given to the template."""

    name: str
    arguments: dict[str, Any]
    identifier: str


@dataclass(frozen=True, slots=True)
class _Found:
    """A call in the text: its position, and its text before and after the arguments."""

    start: int
    end: int
    head: str
    tail: str

    @property
    def is_json(self) -> bool:
        return self.head.startswith("{")


def read_format(one: str, two: str | None, calls: Sequence[KnownCall]) -> CallFormat | None:
    """The format of calls, as read from what a template writes for the first of `calls` and for two
    of them.

    `two` is None if the template refuses two calls. Returns None if no format can be determined
    from the text.
    """
    [call, *_] = found = _find_all(one if two is None else two, calls[: 1 if two is None else 2])
    if call is None or None in found:
        return None
    text = one if two is None else two
    opening = separator = closing = ""
    lead, behind = text[: call.start], text[call.end :]
    if two is not None:
        _, second = found
        if second is None or (call.head, call.tail) != (second.head, second.tail):
            return None
        gap, end = two[call.end : second.start], two[second.end :]
        opening, lead, separator, behind, closing = _framed(lead, gap, end)
    around = opening + lead + separator + behind + closing
    if any(text in around for text in ("NAME", *(call.identifier for call in calls))):
        return None
    return _known(_made(call, lead, behind, separator, opening, closing))


def _made(
    call: _Found, lead: str, behind: str, separator: str, opening: str, closing: str
) -> CallFormat | None:
    if not call.is_json:
        if not opening and not lead:  # a bare name could be any text
            return None
        between = call.head.removeprefix("NAME")
        return of_name(lead, between, call.tail + behind, separator, opening, closing)
    if opening or lead:
        separator = separator or ("" if opening else "\n")
        return of_json(lead, call.head, behind, separator, opening, closing)
    if behind.strip() or closing.strip():
        return None
    return of_bare_json(call.head, separator or "; ")


def _known(format: CallFormat | None) -> CallFormat | None:
    """The named format with the same texts, if there is one, because its patterns cover more
    variants.
    """
    same = [f for f in FORMATS.values() if format is not None and f.texts == format.texts]
    return same[0] if same else format


def _find_all(text: str, calls: Sequence[KnownCall]) -> list[_Found | None]:
    found: list[_Found | None] = []
    start = 0
    for call in calls:
        found.append(_find(text, start, call))
        if (last := found[-1]) is None:
            break
        start = last.end
    return found


def _find(text: str, start: int, call: KnownCall) -> _Found | None:
    """The first call in `text` from `start`, as JSON or as a name before its arguments."""
    span = _value(text, start, lambda value: value == call.arguments)
    name = text.find(call.name, start)
    if span is None or name < 0:
        return None
    begin, end = span
    whole = _value(text, start, lambda value: _is_call(value, call))
    if whole is not None and whole[0] < min(begin, name) and whole[1] > end:
        return _json_call(text, whole, span, call)
    name = text.rfind(call.name, start, begin)
    between = _without_identifier(text[name + len(call.name) : begin], call)
    if name < 0 or call.identifier in text[start:name] + between:
        return None
    return _Found(name, end, f"NAME{between}", "")


def _json_call(
    text: str, whole: tuple[int, int], arguments: tuple[int, int], call: KnownCall
) -> _Found:
    head = _without_identifier(text[whole[0] : arguments[0]], call)
    if call.name in head:
        return _Found(*whole, head.replace(call.name, "NAME"), "}")
    [key] = [k for k, v in _DECODER.raw_decode(text, whole[0])[0].items() if v == call.arguments]
    return _Found(*whole, f'{{"name": "NAME", "{key}": ', "}")


def _is_call(value: Any, call: KnownCall) -> bool:
    named = [key for key in ("arguments", "parameters") if value.get(key) == call.arguments]
    return bool(named) and value.get("name") == call.name


def _value(text: str, start: int, is_wanted: Any) -> tuple[int, int] | None:
    """The position of the first JSON object in `text` that `is_wanted` accepts."""
    for match in re.compile(r"\{").finditer(text, start):
        try:
            value, end = _DECODER.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        if is_wanted(value):
            return match.start(), end
    return None


def _without_identifier(text: str, call: KnownCall) -> str:
    """The text without the call's identifier, because each model writes identifiers in its own
    way.
    """
    quoted = re.escape(json.dumps(call.identifier))
    text = re.sub(rf'"\w+":\s*{quoted},\s*', "", text)
    return re.sub(rf"(?:{TAG.pattern})?{re.escape(call.identifier)}", "", text)


def _framed(before: str, gap: str, after: str) -> tuple[str, str, str, str, str]:
    """(opening, lead, separator, end, closing), from the texts before, between and after two calls.
    `before` is opening and lead, `gap` is end, separator and lead, `after` is end and closing. Tags
    stay whole.
    """
    first, middle, last = (_UNIT.findall(text) for text in (before, gap, after))
    num_lead = _num_equal(first[::-1], middle[::-1])
    middle, lead = middle[: len(middle) - num_lead], middle[len(middle) - num_lead :]
    num_behind = _num_equal(middle, last)
    parts = (
        first[: len(first) - num_lead],
        lead,
        middle[num_behind:],
        middle[:num_behind],
        last[num_behind:],
    )
    opening, lead_text, separator, behind, closing = map("".join, parts)
    return opening, lead_text, separator, behind, closing


def _num_equal(one: Sequence[str], other: Sequence[str]) -> int:
    """The number of items at the beginning that are equal in both."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
