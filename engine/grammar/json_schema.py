"""Refuses what llguidance accepts of JSON Schema, and does not honour."""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from switchyard.engine.errors import InvalidJob
from switchyard.engine.grammar.limits import (
    MAX_CONJUNCTIONS,
    check_seconds,
    seconds_of_regex,
)

# Keywords by the place of schemas in their values. llguidance refuses the keywords of the standard
# that it can't honour, and ignores unknown words.
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
# Keywords that llguidance refuses in its own words, where they are used.
_REFUSED = {
    *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"),
    *("dependencies", "dependentRequired", "dependentSchemas", "propertyNames", "contentSchema"),
    *("unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$dynamicAnchor"),
    *("$recursiveRef", "$recursiveAnchor", "$vocabulary"),
}
_APART = {"$ref", "allOf", "$defs", "definitions", "$schema", "$id", "id", "$anchor", "$comment"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

# llguidance rounds larger whole numbers, as values and as bounds.
MAX_VALUE = 2**63
MAX_BOUND = 2**53
MAX_DEPTH = 128  # of JSON: the limit of llguidance's reader
MAX_REFERENCE_DEPTH = 1500  # of nested definitions: the compiler's recursion must fit its stack
MAX_PROPERTIES = 2000  # of one object
MAX_MULTIPLE = 10_000  # common multiple of all `multipleOf`: the number of states
MAX_PASSES = 20  # over a recursive schema, to find values that can't end
MAX_SHOWN = 200  # characters of a schema's path

# Seconds to compile, for `limits`.
_PER_PART = 3e-5  # a schema, or a value in an array or object of `enum` or `const`
_PER_PAIR_OF_PROPERTIES = 1e-7
_PER_PAIR_OF_PATTERNS = 5e-5  # of `patternProperties`, to test that they are disjoint
_PER_PAIR_OF_OPTIONS = 3e-8  # of `oneOf`, to test that they are disjoint

Schema = Mapping[str, Any]


def check_schema(root: Any) -> float:
    """Returns the estimated seconds of compilation. Raises InvalidJob."""
    depths = _depths(root)
    if depths[id(root)] > MAX_DEPTH:
        raise InvalidJob("the schema is nested too deeply", "constraint")
    schemas = list(_schemas(root))
    references = {s["$ref"] for _, s in schemas if isinstance(s.get("$ref"), str)}
    targets = {reference: _target(root, reference) for reference in references}
    below = [1 + depths[id(root if t is None else t)] / 2 for t in targets.values()]
    if depths[id(root)] + sum(below) > MAX_REFERENCE_DEPTH:
        raise InvalidJob("the schema's definitions are too many, or too deep", "constraint")
    seconds = 0.0
    for where, schema in schemas:
        _check_keywords(where, schema)
        _check_numbers(where, schema)
        _check_min_properties(where, schema)
        _check_names(where, schema)
        if _num_properties(schema) > MAX_PROPERTIES:
            raise _refuse(where, f"it has more than {MAX_PROPERTIES} properties")
        seconds += _seconds(schema)
    check_seconds(seconds)
    _check_conjunctions([schema for _, schema in schemas])
    _check_multiples([schema for _, schema in schemas])
    _check_ends(schemas, targets)
    return seconds


def _depths(root: Any) -> dict[int, int]:
    """Depth of each array and object, `root` included; at most one more than is allowed."""
    levels = [[root]]
    while levels[-1] and len(levels) <= MAX_DEPTH + 1:
        levels.append([item for node in levels[-1] for item in _items(node)])
    depths: dict[int, int] = {}
    for level in reversed(levels):
        for node in level:
            depths[id(node)] = 1 + max((depths.get(id(i), 0) for i in _items(node)), default=0)
    return depths


def _items(node: Any) -> Collection[Any]:
    return node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()


def _schemas(root: Schema) -> Iterator[tuple[str, Schema]]:
    """All schemas inside `root`, parents first, each with its path."""
    found: list[tuple[str, Any]] = [("", root)]
    while found:
        where, schema = found.pop()
        if not isinstance(schema, dict):
            continue
        yield where, schema
        below: list[tuple[str, Any]] = []
        for keyword, value in schema.items():
            path = f"{where}/{keyword[:MAX_SHOWN]}"[:MAX_SHOWN]
            if keyword in _SCHEMA_MAP and isinstance(value, dict):
                below += [(f"{path}/{n[:MAX_SHOWN]}"[:MAX_SHOWN], i) for n, i in value.items()]
            elif keyword in _SCHEMA_LIST and isinstance(value, list):
                below += [(f"{path}/{i}", item) for i, item in enumerate(value)]
            elif keyword in _SCHEMA:
                below.append((path, value))
        found += reversed(below)


def _seconds(schema: Schema) -> float:
    """Estimated seconds for this schema, without the schemas inside it."""
    patterns = _mapping(schema, "patternProperties")
    seconds = (
        _PER_PART
        + _num_properties(schema) ** 2 * _PER_PAIR_OF_PROPERTIES
        + len(patterns) ** 2 * _PER_PAIR_OF_PATTERNS
        + len(_list(schema, "oneOf")) ** 2 * _PER_PAIR_OF_OPTIONS
        + sum(map(seconds_of_regex, patterns))
    )
    if isinstance(pattern := schema.get("pattern"), str):
        seconds += seconds_of_regex(pattern)
    values = [schema.get("const"), *_list(schema, "enum")]
    nodes = [value for value in values if isinstance(value, dict | list)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict):
            seconds += len(node) ** 2 * _PER_PAIR_OF_PROPERTIES
        items = _items(node)
        seconds += (1 + len(items)) * _PER_PART
        nodes += [item for item in items if isinstance(item, dict | list)]
    return seconds


def _check_conjunctions(schemas: Sequence[Schema]) -> None:
    """Few parts of a schema with many patterns may hold together."""
    forms = {str(s[k]) for s in schemas for k in ("pattern", "format") if k in s}
    number = 0
    for schema in schemas:
        parts = len(_list(schema, "allOf")) + ("$ref" in schema)
        is_more = bool(schema.keys() - _ANNOTATIONS - _APART)
        number += max(parts + is_more - 1, 0) if parts else 0
    if min(len(forms), number) > MAX_CONJUNCTIONS:
        raise InvalidJob(
            f"the schema has more than {MAX_CONJUNCTIONS} patterns and formats, and joins more than"
            f" {MAX_CONJUNCTIONS} schemas by allOf or beside $ref",
            "constraint",
        )


def _check_multiples(schemas: Sequence[Schema]) -> None:
    """The compiler counts in units of the last digit of all `multipleOf` together."""
    multiple = 1
    for value in {s["multipleOf"] for s in schemas if _is_number(s.get("multipleOf"))}:
        digits = Decimal(repr(value)).normalize().as_tuple().digits
        multiple = math.lcm(multiple, int("".join(map(str, digits[:20]))) or 1)
        if multiple > MAX_MULTIPLE:
            raise InvalidJob(
                f"the schema's multipleOf have more than {MAX_MULTIPLE} as their common multiple,"
                " without zeros at its end",
                "constraint",
            )


def _check_keywords(where: str, schema: Schema) -> None:
    for keyword in schema:
        if keyword not in _KNOWN and keyword not in _REFUSED and not _is_vendors(keyword):
            raise _refuse(where, f"the keyword {keyword[:100]!r} is not known")


def _is_vendors(keyword: str) -> bool:
    return keyword.startswith("x-") and keyword != "x-guidance"  # the options of llguidance


def _check_numbers(where: str, schema: Schema) -> None:
    for keyword in _BOUNDS & schema.keys():
        if any(abs(number) > MAX_BOUND for number in _numbers(schema[keyword])):
            raise _refuse(where, f"{keyword} is beyond 2**53")
    for keyword in _VALUES & schema.keys():
        if any(isinstance(n, int) and abs(n) >= MAX_VALUE for n in _numbers(schema[keyword])):
            raise _refuse(where, f"{keyword} has a whole number beyond 2**63")


def _numbers(value: Any) -> Iterator[float]:
    nodes = [value]
    while nodes:
        node = nodes.pop()
        if _is_number(node):
            yield node
        nodes += _items(node)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_min_properties(where: str, schema: Schema) -> None:
    """A name outside `properties` may come twice, and counts once."""
    least = schema.get("minProperties")
    if isinstance(least, int) and least > len(_required(schema)) + 1:
        raise _refuse(where, "minProperties may exceed the required properties by one at most")


def _check_names(where: str, schema: Schema) -> None:
    """JSON spells a control character in several ways, so that such a name could come again."""
    if schema.get("additionalProperties") is False and not _mapping(schema, "patternProperties"):
        return
    for name in (*_mapping(schema, "properties"), *_required(schema)):
        if isinstance(name, str) and _CONTROL.search(name):
            raise _refuse(where, "a name has a control character, and others may come")


def _check_ends(schemas: Sequence[tuple[str, Schema]], targets: Mapping[str, Any]) -> None:
    """Refuses a schema whose values would each contain another value of it, without end. llguidance
    would begin one.
    """
    endless = {id(schema): where for where, schema in schemas}
    order = [schema for _, schema in schemas]
    for _ in range(MAX_PASSES):
        order.reverse()  # children come after their parents, definitions anywhere
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
    """Whether a value can end, if no value of the schemas in `endless` can."""
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


def _num_properties(schema: Schema) -> int:
    return len(_mapping(schema, "properties").keys() | set(_required(schema)))


def _required(schema: Schema) -> list[Any]:
    return [name for name in _list(schema, "required") if isinstance(name, str)]


def _mapping(schema: Schema, keyword: str) -> Schema:
    value = schema.get(keyword)
    return value if isinstance(value, dict) else {}


def _list(schema: Schema, keyword: str) -> list[Any]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []


def _target(root: Schema, reference: str) -> Any:
    """The target of a reference; None if it is not a plain path."""
    node: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, dict) or name not in node:
            return None
        node = node[name]
    return node if reference.startswith("#/") or reference == "#" else None


def _refuse(where: str, what: str) -> InvalidJob:
    return InvalidJob(f"the schema at #{where} is not supported: {what}", "constraint")
