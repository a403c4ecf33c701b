"""What of JSON Schema can't be honoured, and is refused though llguidance would take it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from switchyard.engine.errors import InvalidJob

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
# Refused by llguidance itself, in words of its own, where they are used.
_REFUSED = {
    *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"),
    *("dependencies", "dependentRequired", "dependentSchemas", "propertyNames", "contentSchema"),
    *("unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$dynamicAnchor"),
    *("$recursiveRef", "$recursiveAnchor", "$vocabulary"),
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

# Whole numbers beyond are rounded on their way through llguidance: as values, as bounds.
MAX_VALUE = 2**63
MAX_BOUND = 2**53
MAX_REFERENCE_DEPTH = 1500  # of nested definitions: the compiler's recursion must fit its stack
MAX_PROPERTIES = 2000  # of one object: the time to compile grows with their square
MAX_PASSES = 20  # over a schema that refers to itself, to find out whether its values can end

Schema = Mapping[str, Any]


def check_schema(root: Any) -> None:
    """Raises InvalidJob. Takes a schema that JSON can hold, nested no deeper than 128 times."""
    if not isinstance(root, dict):
        return
    schemas = dict(_schemas(root, ""))
    references = {s["$ref"] for s in schemas.values() if isinstance(s.get("$ref"), str)}
    targets = {reference: _target(root, reference) for reference in references}
    depths = [1 + _depth(root if t is None else t) / 2 for t in targets.values()]
    if _depth(root) + sum(depths) > MAX_REFERENCE_DEPTH:
        raise InvalidJob("the schema's definitions are too many, or too deep", "constraint")
    for where, schema in schemas.items():
        _check_keywords(where, schema)
        _check_numbers(where, schema)
        _check_min_properties(where, schema)
        _check_names(where, schema)
        if len(_mapping(schema, "properties").keys() | set(_required(schema))) > MAX_PROPERTIES:
            raise _refuse(where, f"it has more than {MAX_PROPERTIES} properties")
    _check_ends(schemas, targets)


def _schemas(schema: Any, where: str) -> Iterator[tuple[str, Schema]]:
    """All objects in it that are schemas, each with the path to it."""
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


def _check_keywords(where: str, schema: Schema) -> None:
    for keyword in schema:
        if keyword not in _KNOWN and keyword not in _REFUSED and not _is_vendors(keyword):
            raise _refuse(where, f"the keyword {keyword[:100]!r} is not known")


def _is_vendors(keyword: str) -> bool:
    return keyword.startswith("x-") and keyword != "x-guidance"  # llguidance's own options


def _check_numbers(where: str, schema: Schema) -> None:
    for keyword in _BOUNDS & schema.keys():
        if any(abs(number) > MAX_BOUND for number in _numbers(schema[keyword])):
            raise _refuse(where, f"{keyword} is beyond 2**53")
    for keyword in _VALUES & schema.keys():
        if any(isinstance(n, int) and abs(n) >= MAX_VALUE for n in _numbers(schema[keyword])):
            raise _refuse(where, f"{keyword} has a whole number beyond 2**63")


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def _check_min_properties(where: str, schema: Schema) -> None:
    """A name that isn't in `properties` may come twice, which counts but once."""
    least = schema.get("minProperties")
    if isinstance(least, int) and least > len(_required(schema)) + 1:
        raise _refuse(where, "minProperties may be one more than what is required, at the most")


def _check_names(where: str, schema: Schema) -> None:
    """JSON has several ways to spell a control character, so such a name could come again."""
    if schema.get("additionalProperties") is False and not _mapping(schema, "patternProperties"):
        return
    for name in (*_mapping(schema, "properties"), *_required(schema)):
        if isinstance(name, str) and _CONTROL.search(name):
            raise _refuse(where, "a name has a control character, and others may come")


def _check_ends(schemas: Mapping[str, Schema], targets: Mapping[str, Any]) -> None:
    """No value is valid that would have to hold one of its own kind. llguidance would begin it."""
    endless = {id(schema): where for where, schema in schemas.items()}
    order = list(schemas.values())
    for _ in range(MAX_PASSES):
        order.reverse()  # children are behind their parents, definitions anywhere
        ending = []
        for schema in order:
            if id(schema) in endless and _can_end(schema, targets, endless):
                ending.append(schema)
                del endless[id(schema)]
        if not ending:
            break
    if endless:
        raise _refuse(min(endless.values()), "no value of it can end")


def _can_end(schema: Schema, targets: Mapping[str, Any], endless: Mapping[int, str]) -> bool:
    """Whether, if those in `endless` never do."""
    needed = [targets.get(schema["$ref"])] if isinstance(schema.get("$ref"), str) else []
    needed += _list(schema, "allOf")
    for options in (_list(schema, "anyOf"), _list(schema, "oneOf")):
        if options and all(id(option) in endless for option in options):
            return False
    match schema.get("type"):
        case "object" | ["object"]:
            properties, others = _mapping(schema, "properties"), schema.get("additionalProperties")
            needed += [properties.get(name, others) for name in _required(schema)]
        case "array" | ["array"]:
            least = schema.get("minItems")
            least = least if isinstance(least, int) else 0
            first = _list(schema, "prefixItems")
            needed += first[: max(least, 0)]
            if least > len(first):
                needed.append(schema.get("items"))
    return not any(id(item) in endless for item in needed)


def _required(schema: Schema) -> list[Any]:
    return [name for name in _list(schema, "required") if isinstance(name, str)]


def _mapping(schema: Schema, keyword: str) -> Schema:
    value = schema.get(keyword)
    return value if isinstance(value, dict) else {}


def _list(schema: Schema, keyword: str) -> list[Any]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []


def _depth(node: Any) -> int:
    items = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return 1 + max(map(_depth, items), default=0)


def _target(root: Schema, reference: str) -> Any:
    """What a reference leads to; None where that isn't plain."""
    node: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, dict) or name not in node:
            return None
        node = node[name]
    return node if reference.startswith("#/") or reference == "#" else None


def _refuse(where: str, what: str) -> InvalidJob:
    return InvalidJob(f"the schema at #{where[:200]} is not supported: {what}", "constraint")
