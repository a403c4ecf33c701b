"""The JSON schema of a tool's arguments, with a check of its types. Pure."""

import json
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator

_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_NAMED = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_ONE = (
    *("items", "contains", "additionalItems", "unevaluatedItems"),
    *("additionalProperties", "propertyNames", "unevaluatedProperties"),
    *("not", "if", "then", "else"),
)
MAX_SHOWN = 200  # characters of a path in an error message


def _checked(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns `schema`. Raises ValueError, with the path, for a type that JSON Schema doesn't
    define, and for keywords such as `properties` whose value isn't an object.
    """
    schemas: list[tuple[str, dict[str, Any]]] = [("", schema)]
    while schemas:
        path, inner = schemas.pop()
        kinds = inner.get("type")
        for kind in kinds if isinstance(kinds, list) else [] if kinds is None else [kinds]:
            if kind not in _TYPES:
                some = " or ".join(map(json.dumps, _TYPES))
                raise ValueError(f"{(path + 'type')[-MAX_SHOWN:]} must be {some}")
        for key in _NAMED:
            if not isinstance(inner.get(key), dict | None):
                raise ValueError(f"{(path + key)[-MAX_SHOWN:]} must be an object")
        schemas += ((f"{path}{key}."[-MAX_SHOWN:], one) for key, one in _inside(inner))
    return schema


def _inside(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas directly inside a schema, each with the keys that lead to it."""
    found: list[tuple[str, Any]] = [(key, schema.get(key)) for key in _ONE]
    for key in _NAMED:
        if isinstance(named := schema.get(key), dict):
            found += ((f"{key}.{name}", one) for name, one in named.items())
    for key in _LISTED:
        if isinstance(listed := schema.get(key), list):
            found += ((f"{key}.{i}", one) for i, one in enumerate(listed))
    return ((path, one) for path, one in found if isinstance(one, dict))


ToolSchema = Annotated[dict[str, Any], AfterValidator(_checked)]
