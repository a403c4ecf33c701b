"""Resolves references and combinations in a value's schemas, and divides the schemas by type. Does
no I/O.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from switchyard.engine.errors import InvalidJob
from switchyard.engine.grammar.limits import Estimate
from switchyard.engine.grammar.schema.document import NOTHING, Document, Schema

TYPES = ("null", "boolean", "number", "string", "array", "object")
COMBINING = frozenset({"$ref", "allOf", "anyOf", "oneOf"})
ENUMERATING = frozenset({"const", "enum"})

MAX_COUNT = 2**31  # items or characters: no text has more
MAX_BRANCHES = 1000  # ways to choose one option of each anyOf and oneOf

# Seconds.
_PER_BRANCH = 2e-5
_PER_PART = 1e-6  # for each schema that a branch takes, and each one above that schema

Branch = tuple[Schema, ...]  # schemas that all apply, each only with its own keywords


@dataclass(slots=True)
class _Begun:
    left: list[tuple[Schema, frozenset[Schema]]]  # each with the schemas that it is part of
    taken: dict[Schema, None] = field(default_factory=dict)
    options: list[list[tuple[Schema | None, frozenset[Schema]]]] = field(default_factory=list)


def branches(
    schemas: Sequence[Schema],
    document: Document,
    estimate: Estimate,
    note: Callable[[Schema], None] = lambda _: None,
) -> list[Branch]:
    """The branches of `schemas`. A value is valid for all of `schemas` if it is valid for all
    schemas in one of the branches. `note` is called for each schema that has a `oneOf`. Raises
    InvalidJob for too many branches.
    """
    if len(schemas) == 1 and COMBINING.isdisjoint(schemas[0].content):
        return [tuple(schemas)]
    done: list[Branch] = []
    begun = [_Begun([(schema, frozenset()) for schema in schemas])]
    while begun:
        one = begun.pop()
        estimate.add(_PER_BRANCH, schemas[0].where if schemas else "")
        if not _take(one, document, estimate, note):
            continue
        if not one.options:
            done.append(tuple(document.without(schema, COMBINING) for schema in one.taken))
        else:
            [first, *others] = one.options
            for option, above in reversed(first):
                left = [] if option is None else [(option, above)]
                begun.append(_Begun(left, dict(one.taken), list(others)))
        if len(done) + len(begun) > MAX_BRANCHES:
            raise InvalidJob(
                f"the schema at #{schemas[0].where} is not supported: its anyOf and oneOf have more"
                f" than {MAX_BRANCHES} combinations",
                "constraint",
            )
    return done


def _take(
    one: _Begun, document: Document, estimate: Estimate, note: Callable[[Schema], None]
) -> bool:
    """Take the remaining schemas. Returns False if no value is valid for them."""
    while one.left:
        schema, above = one.left.pop(0)
        if schema is NOTHING or schema in above:  # part of itself: no finite value
            return False
        if schema in one.taken:
            continue
        one.taken[schema] = None
        estimate.add((1 + len(above)) * _PER_PART, schema.where)
        content, above = schema.content, above | {schema}
        parts = [document.at(part) for part in content.get("allOf", ())]
        if "$ref" in content:
            parts.append(document.target(schema))
        one.left += [(part, above) for part in parts if part is not None]
        for keyword in ("anyOf", "oneOf"):
            if keyword in content:
                one.options.append([(document.at(o), above) for o in content[keyword]])
        if len(content.get("oneOf", ())) > 1:
            note(schema)
    return True


def types_of(branch: Branch) -> tuple[set[str], bool]:
    """The types that a value may have, and whether a number must be an integer."""
    types, is_integer = set(TYPES), False
    for schema in branch:
        if (listed := schema.content.get("type")) is not None:
            listed = {listed} if isinstance(listed, str) else set(listed)
            is_integer |= "integer" in listed and "number" not in listed
            types &= {"number" if name == "integer" else name for name in listed}
    return types, is_integer


def values_of(branch: Branch) -> list[Any] | None:
    """The values that `const` and `enum` allow, or None without these keywords."""
    values: list[Any] | None = None
    for content in (schema.content for schema in branch):
        for listed in [content.get("enum"), [content["const"]] if "const" in content else None]:
            if listed is None:
                continue
            if values is None:
                values = list({canonical(value): value for value in listed}.values())
            else:
                known = set(map(canonical, listed))
                values = [value for value in values if canonical(value) in known]
    return values


def least_of(branch: Branch, keyword: str) -> int:
    """The minimum that `minItems` and similar keywords require."""
    return max((schema.content.get(keyword, 0) for schema in branch), default=0)


def most_of(branch: Branch, keyword: str, limit: int = MAX_COUNT) -> int | None:
    """The maximum that `maxItems` and similar keywords allow, or None if it is `limit` or above."""
    counts = [schema.content[keyword] for schema in branch if keyword in schema.content]
    return min((count for count in counts if count < limit), default=None)


def type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
    return "array" if isinstance(value, list) else "object"


def canonical(value: Any) -> str:
    """A text that is the same for equal JSON values, and different for others."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
