"""Rules for numbers. Does no I/O."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from switchyard.engine.errors import InvalidJob
from switchyard.engine.grammar.limits import Estimate
from switchyard.engine.grammar.schema.branches import Branch
from switchyard.engine.grammar.schema.document import refusal
from switchyard.engine.grammar.schema.probe import inline, is_empty

BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")

# Seconds for each state of a multiple, whose digits give the number of states; and for a probe.
_PER_STATE = 8e-6
_PER_PROBE = 1e-3


@dataclass(frozen=True, slots=True)
class _Bound:
    value: float
    is_exclusive: bool = False


@dataclass(slots=True)
class _Bounds:
    """The bounds that the schemas of a branch set together."""

    lower: _Bound | None = None
    upper: _Bound | None = None
    multiple: Fraction | None = None

    def add(self, content: Mapping[str, Any]) -> None:
        for name in ("Minimum", "Maximum"):
            exclusive = content.get(f"exclusive{name}", False)
            plain = content.get(name.lower())
            if isinstance(exclusive, bool):  # draft 4: makes the other keyword exclusive
                found = [] if plain is None else [_Bound(plain, exclusive)]
            else:
                found = [_Bound(exclusive, True)]
                found += [] if plain is None else [_Bound(plain)]
            for bound in found:
                if name == "Minimum":
                    self.lower = max(self.lower or bound, bound, key=_lower)
                else:
                    self.upper = min(self.upper or bound, bound, key=_upper)
        if "multipleOf" in content:
            self._add_multiple(abs(Fraction(str(content["multipleOf"]))))

    def _add_multiple(self, multiple: Fraction) -> None:
        self.multiple = multiple if self.multiple is None else _common(self.multiple, multiple)

    def admits(self, value: Fraction) -> bool:
        return (
            (self.lower is None or _lower(self.lower) <= (value, False))
            and (self.upper is None or (value, True) <= _upper(self.upper))
            and (self.multiple is None or value % self.multiple == 0)
        )

    def is_empty(self, is_integer: bool) -> bool:
        """Whether no number is within the bounds. With `is_integer`, the bounds become whole
        numbers.
        """
        if is_integer:
            self._add_multiple(Fraction(1))
            if self.lower is not None:
                least, is_exclusive = _lower(self.lower)
                self.lower = _Bound(math.floor(least) + 1 if is_exclusive else math.ceil(least))
            if self.upper is not None:
                most, is_inclusive = _upper(self.upper)
                self.upper = _Bound(math.floor(most) if is_inclusive else math.ceil(most) - 1)
        if self.lower is None or self.upper is None:
            return False
        if self.multiple is None:
            lower, upper = _lower(self.lower)[0], _upper(self.upper)[0]
            is_open = self.lower.is_exclusive or self.upper.is_exclusive
            return lower > upper or (lower == upper and is_open)
        first = math.ceil(_lower(self.lower)[0] / self.multiple) * self.multiple
        if not self.admits(first):  # it is an exclusive bound itself
            first += self.multiple
        return not self.admits(first)

    def schema(self, is_integer: bool) -> Iterator[tuple[str, float]]:
        for name, bound in (("inimum", self.lower), ("aximum", self.upper)):
            if bound is not None:
                yield f"{'exclusiveM' if bound.is_exclusive else 'm'}{name}", bound.value
        if self.multiple is not None and not (is_integer and self.multiple == 1):
            yield "multipleOf", _number(self.multiple)


def _common(one: Fraction, other: Fraction) -> Fraction:
    """The least common multiple."""
    numerator = math.lcm(one.numerator * other.denominator, other.numerator * one.denominator)
    return Fraction(numerator, one.denominator * other.denominator)


def _number(exactly: Fraction) -> float:
    return int(exactly) if exactly.denominator == 1 else float(exactly)


def _lower(bound: _Bound) -> tuple[Fraction, bool]:
    return Fraction(str(bound.value)), bound.is_exclusive


def _upper(bound: _Bound) -> tuple[Fraction, bool]:
    return Fraction(str(bound.value)), not bound.is_exclusive


def numbers(
    branch: Branch, is_integer: bool, values: Sequence[Any] | None, estimate: Estimate
) -> list[str]:
    """The alternatives of a rule for a branch's numbers, or an empty list if no number is
    possible.
    """
    having = [schema for schema in branch if not schema.content.keys().isdisjoint(BOUNDS)]
    bounds = _Bounds()
    for schema in having:
        bounds.add(schema.content)
    if values is not None:
        exact = [(value, Fraction(str(value))) for value in values]
        kept = [
            _spelled(value, exactly, is_integer)
            for value, exactly in exact
            if bounds.admits(exactly) and not (is_integer and exactly.denominator > 1)
        ]
        return [f"/{'|'.join(dict.fromkeys(kept))}/"] if kept else []
    if bounds.is_empty(is_integer):
        return []
    said = dict(bounds.schema(is_integer))
    kind = {"type": "integer" if is_integer else "number"}
    if bounds.multiple is None or bounds.multiple == 1:
        parts = [inline({**kind, **said})]
    else:
        multiples = _by_decimals(bounds.multiple)
        parts = [inline({**kind, **said, "multipleOf": multiple}) for multiple in multiples]
    if all(map(_is_plain, said.values())) and said.get("multipleOf", 1) in range(1, 100):
        return parts
    return _probed(parts, bounds.multiple, having[0].where, estimate)


def _by_decimals(multiple: Fraction) -> list[float]:
    """The multiple, and the larger multiples of it that have fewer decimals. With 0.25 alone, the
    compiler accepts 1.50, but not 1.5.
    """
    found = [multiple]
    places, one = Fraction(1, 10), multiple * 10
    while one.denominator > 1:
        found.append(_common(multiple, places))
        places, one = places / 10, one * 10
    return [_number(each) for each in dict.fromkeys(found)]


def _probed(
    parts: list[str], multiple: Fraction | None, where: str, estimate: Estimate
) -> list[str]:
    """Returns the parts, which the compiler may refuse, except those that admit no number."""
    states = 0
    if multiple is not None:
        while multiple.denominator > 1:
            multiple *= 10
        states = int(str(multiple).rstrip("0")[:9])
    estimate.add((_PER_PROBE + states * _PER_STATE) * len(parts), where)
    try:
        return [part for part in parts if not is_empty(part)]
    except InvalidJob as error:
        raise refusal(where, str(error)) from None


def _is_plain(value: float) -> bool:
    """Whether the compiler certainly accepts the number as a bound."""
    return "e" not in repr(value)


def _spelled(value: float, exactly: Fraction, is_integer: bool) -> str:
    """A number as a regular expression, which may allow trailing zeros."""
    text = json.dumps(value)
    written = text.replace(".", "[.]").replace("+", "[+]")
    if exactly.denominator > 1:
        return written if "e" in text else f"{written}0*"
    sign = "" if exactly or is_integer else "-?"
    whole = str(int(exactly)) if is_integer else rf"{sign}{int(exactly)}(\.0+)?"
    return f"{whole}|{written}" if "e" in text else whole
