"""What of JSON Schema can't be honoured, and is refused though llguidance would take it."""

from collections.abc import Iterator, Mapping
from typing import Any

from engine.errors import InvalidJob

# By where a keyword has schemas in it. llguidance refuses what it knows of the standard and can't
# do, but takes every word that it doesn't know.
_SCHEMA = {"items", "additionalItems", "additionalProperties"}
_SCHEMA_LIST = {"anyOf", "oneOf", "allOf", "prefixItems", "items"}
_SCHEMA_MAP = {"properties", "patternProperties", "$defs", "definitions"}
_VALUES = {"const", "enum"}
_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_OTHERS = {
    *("$ref", "$schema", "$id", "id", "$anchor", "$comment"),
    *("type", "required", "minItems", "maxItems", "minProperties", "maxProperties"),
    *("minLength", "maxLength", "pattern", "format"),
}
_ANNOTATIONS = {
    *("title", "description", "default", "example", "examples", "deprecated", "readOnly"),
    *("writeOnly", "contentEncoding", "contentMediaType", "discriminator", "markdownDescription"),
}
_KNOWN = _SCHEMA | _SCHEMA_LIST | _SCHEMA_MAP | _VALUES | _BOUNDS | _OTHERS | _ANNOTATIONS
# Refused by llguidance itself, in words of its own where they are used.
_REFUSED = {
    *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"),
    *("dependencies", "dependentRequired", "dependentSchemas", "propertyNames", "contentSchema"),
    *("unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$dynamicAnchor"),
    *("$recursiveRef", "$recursiveAnchor", "$vocabulary"),
}

MAX_EXACT = 2**53  # whole numbers beyond are rounded on their way through llguidance
MAX_REFERENCE_DEPTH = 1500  # of nested definitions: the compiler's recursion must fit its stack


def check_schema(schema: Any) -> None:
    """Raises InvalidJob. Takes a schema that JSON can hold, nested no deeper than 128 times."""
    references: set[str] = set()
    for where, node in _schemas(schema, ""):
        _check_keywords(where, node)
        _check_numbers(where, node)
        _check_min_properties(where, node)
        if isinstance(node.get("$ref"), str):
            references.add(node["$ref"])
    depth = _depth(schema) + sum(1 + _depth(_target(schema, r)) / 2 for r in references)
    if depth > MAX_REFERENCE_DEPTH:
        raise InvalidJob("the schema's definitions are too many, or too deep", "constraint")


def _schemas(schema: Any, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All objects in it that are schemas, with a path to each."""
    if not isinstance(schema, dict):
        return
    yield where, schema
    for keyword, value in schema.items():
        path = f"{where}/{keyword}"
        if keyword in _SCHEMA_MAP and isinstance(value, dict):
            for name, item in value.items():
                yield from _schemas(item, f"{path}/{name}")
        elif keyword in _SCHEMA_LIST and isinstance(value, list):
            for i, item in enumerate(value):
                yield from _schemas(item, f"{path}/{i}")
        elif keyword in _SCHEMA:
            yield from _schemas(value, path)


def _check_keywords(where: str, schema: Mapping[str, Any]) -> None:
    for keyword in schema:
        if keyword not in _KNOWN and keyword not in _REFUSED and not _is_vendors(keyword):
            raise _refuse(where, f"unknown keyword {keyword[:100]!r}")


def _is_vendors(keyword: str) -> bool:
    return keyword.startswith("x-") and keyword != "x-guidance"  # llguidance's own options


def _check_numbers(where: str, schema: Mapping[str, Any]) -> None:
    given = [(k, schema[k]) for k in (*_BOUNDS, *_VALUES) if k in schema]
    for keyword, value in given:
        if any(abs(number) > MAX_EXACT for number in _numbers(value)):
            raise _refuse(where, f"{keyword} has a number beyond 2**53")


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def _check_min_properties(where: str, schema: Mapping[str, Any]) -> None:
    """A name that isn't in `properties` may come twice, which counts but once."""
    least, required = schema.get("minProperties", 0), schema.get("required", [])
    if isinstance(least, int) and isinstance(required, list) and least > len(required) + 1:
        raise _refuse(where, "minProperties may be one more than what is required, at the most")


def _depth(node: Any) -> int:
    items = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return 1 + max(map(_depth, items), default=0)


def _target(schema: Any, reference: str) -> Any:
    """What a reference leads to, or all, where that isn't plain."""
    node = schema
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, dict) or name not in node:
            return schema
        node = node[name]
    return node


def _refuse(where: str, what: str) -> InvalidJob:
    return InvalidJob(f"the schema at #{where[:200]}: {what}, which is not supported", "constraint")
