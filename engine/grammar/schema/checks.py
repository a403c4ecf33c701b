"""Refuses JSON schemas with parts that can't be enforced, and reports where these are. Does no
I/O.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from switchyard.engine.errors import InvalidJob
from switchyard.engine.grammar.limits import MAX_CONJUNCTIONS, Estimate, seconds_of_regex
from switchyard.engine.grammar.schema.branches import MAX_COUNT
from switchyard.engine.grammar.schema.document import (
    ANNOTATIONS,
    LISTED,
    NAMED,
    NAMES,
    ONE,
    Document,
    Json,
    Schema,
    refusal,
)

_VALUES = {"const", "enum"}
_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_COUNTS = {
    *("minItems", "maxItems", "minProperties", "maxProperties", "minLength", "maxLength"),
}
_LEAST = {"minItems", "minProperties", "minLength"}
_OTHERS = {"$ref", "type", "required", "dependentRequired", "pattern", "format"}
_KNOWN = ONE | LISTED | NAMED | NAMES | _VALUES | _BOUNDS | _COUNTS | _OTHERS | ANNOTATIONS
_TYPES = {"null", "boolean", "integer", "number", "string", "array", "object"}
_APART = {"$ref", "allOf", *NAMES}

# llguidance rounds larger whole numbers, as values and as bounds.
MAX_VALUE = 2**63
MAX_BOUND = 2**53
MAX_DEPTH = 128  # of JSON: the limit of llguidance's reader
MAX_PROPERTIES = 2000  # of one object
MAX_MULTIPLE = 10_000  # common multiple of all `multipleOf`: the number of states

# Seconds, including the compiler's unless these belong to a rule.
_PER_PART = 2e-5  # a schema, or a value in an array or object of `enum` or `const`
_PER_PAIR_OF_PATTERNS = 5e-5  # of `patternProperties`, to test that they are disjoint


def checked(root: Any, estimate: Estimate) -> Document:
    """Returns the schema, after checking that all of it can be enforced. Raises InvalidJob."""
    if _is_deep(root):
        raise InvalidJob("the schema is nested too deeply", "constraint")
    document = Document(root)
    schemas = document.schemas()
    for schema in schemas:
        _check_keywords(schema)
        _check_numbers(schema)
        if _num_properties(schema.content) > MAX_PROPERTIES:
            raise refusal(schema.where, f"it has more than {MAX_PROPERTIES} properties")
        estimate.add(_seconds(schema.content), schema.where)
    _check_conjunctions([schema.content for schema in schemas])
    _check_multiples([schema.content for schema in schemas])
    return document


def _is_deep(root: Any) -> bool:
    level = [root]
    depth = 0
    while level and depth <= MAX_DEPTH:
        level = [item for node in level for item in _items(node)]
        depth += 1
    return depth > MAX_DEPTH


def _items(node: Any) -> Collection[Any]:
    return node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()


def _seconds(schema: Json) -> float:
    """The estimated seconds for this schema, without the schemas inside it."""
    seconds = _PER_PART
    if patterns := _mapping(schema, "patternProperties"):
        seconds += len(patterns) ** 2 * _PER_PAIR_OF_PATTERNS + sum(map(seconds_of_regex, patterns))
    values = [schema.get("const"), *_list(schema, "enum")]
    nodes = [value for value in values if isinstance(value, dict | list)]
    while nodes:
        items = _items(nodes.pop())
        seconds += (1 + len(items)) * _PER_PART
        nodes += [item for item in items if isinstance(item, dict | list)]
    return seconds


def _check_conjunctions(schemas: Sequence[Json]) -> None:
    """Raises InvalidJob if the schema has many patterns and also joins many schemas."""
    forms = {str(s[k]) for s in schemas for k in ("pattern", "format") if k in s}
    number = 0
    for schema in schemas:
        parts = len(_list(schema, "allOf")) + ("$ref" in schema)
        is_more = bool(schema.keys() - ANNOTATIONS - _APART)
        number += max(parts + is_more - 1, 0) if parts else 0
    if min(len(forms), number) > MAX_CONJUNCTIONS:
        raise InvalidJob(
            f"the schema has more than {MAX_CONJUNCTIONS} patterns and formats, and joins more than"
            f" {MAX_CONJUNCTIONS} schemas with allOf or $ref",
            "constraint",
        )


def _check_multiples(schemas: Sequence[Json]) -> None:
    """Raises InvalidJob if the common multiple is too large. The compiler counts in units of the
    smallest decimal place in any `multipleOf`.
    """
    multiple = 1
    for value in {s["multipleOf"] for s in schemas if _is_number(s.get("multipleOf"))}:
        digits = Decimal(repr(value)).normalize().as_tuple().digits
        multiple = math.lcm(multiple, int("".join(map(str, digits[:20]))) or 1)
        if multiple > MAX_MULTIPLE:
            raise InvalidJob(
                "the least common multiple of all multipleOf, without trailing zeros, is above"
                f" {MAX_MULTIPLE}",
                "constraint",
            )


def _check_keywords(schema: Schema) -> None:
    for keyword, value in schema.content.items():
        if keyword.startswith("x-") and keyword != "x-guidance":  # the options of llguidance
            continue
        if keyword not in _KNOWN:
            raise refusal(schema.where, f"the keyword {keyword[:100]!r} is not known")
        if (fits := _FITS.get(keyword)) is not None and not fits[1](value):
            raise refusal(schema.where, f"{keyword} must be {fits[0]}")


def _check_numbers(schema: Schema) -> None:
    content = schema.content
    for keyword in _BOUNDS & content.keys():
        if any(abs(number) > MAX_BOUND for number in _numbers(content[keyword])):
            raise refusal(schema.where, f"{keyword} is beyond 2**53")
    for keyword in _VALUES & content.keys():
        if any(isinstance(n, int) and abs(n) >= MAX_VALUE for n in _numbers(content[keyword])):
            raise refusal(schema.where, f"{keyword} has a whole number beyond 2**63")
    for keyword in _LEAST & content.keys():
        if content[keyword] >= MAX_COUNT:
            raise refusal(schema.where, f"{keyword} is beyond 2**31")


def _numbers(value: Any) -> Iterator[float]:
    nodes = [value]
    while nodes:
        node = nodes.pop()
        if _is_number(node):
            yield node
        nodes += _items(node)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _num_properties(schema: Json) -> int:
    return len(_mapping(schema, "properties").keys() | set(_list(schema, "required")))


def _mapping(schema: Json, keyword: str) -> Mapping[str, Any]:
    value = schema.get(keyword)
    return value if isinstance(value, dict) else {}


def _list(schema: Json, keyword: str) -> list[Any]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _are_schemas(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_schema, value))


def _are_named_schemas(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _are_types(value: Any) -> bool:
    return all(name in _TYPES for name in (value if _are_names(value) else [str(value)]))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


# What the value of a keyword must be.
_FITS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(_COUNTS, ("a whole number of 0 or more", _is_count)),
    **dict.fromkeys(NAMED, ("an object of schemas", _are_named_schemas)),
    **dict.fromkeys(LISTED, ("a list of schemas", _are_schemas)),
    **dict.fromkeys(ONE, ("a schema", _is_schema)),
    **dict.fromkeys(_BOUNDS, ("a number", _is_number)),
    **dict.fromkeys(
        ("exclusiveMinimum", "exclusiveMaximum"),
        ("a number", lambda value: isinstance(value, bool) or _is_number(value)),
    ),
    "items": (
        "a schema, or a list of them",
        lambda value: _is_schema(value) or _are_schemas(value),
    ),
    "multipleOf": ("a number other than 0", lambda value: _is_number(value) and value != 0),
    "required": ("a list of names", _are_names),
    "dependentRequired": (
        "an object of lists of names",
        lambda value: isinstance(value, dict) and all(map(_are_names, value.values())),
    ),
    "enum": ("a list", lambda value: isinstance(value, list)),
    "type": (f"of {', '.join(sorted(_TYPES))}", _are_types),
    "pattern": ("a string", lambda value: isinstance(value, str)),
    "format": ("a string", lambda value: isinstance(value, str)),
}
