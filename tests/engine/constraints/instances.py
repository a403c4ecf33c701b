"""Random values of random schemas, for hypothesis. Some of them are not valid."""

import re

import hypothesis
import jsonschema
from hypothesis import strategies as st

_FORMATS = {
    "date": "2024-02-29",
    "time": "12:30:00Z",
    "date-time": "2024-02-29T12:30:00Z",
    "duration": "P1DT2H",
    "email": "a.b@example.org",
    "hostname": "example.org",
    "ipv4": "192.168.0.1",
    "ipv6": "2001:db8::1",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
}
# A string has a format if `instance` gives it for that format; no other is known to have it.
CHECKER = jsonschema.FormatChecker(formats=())
for _name, _text in _FORMATS.items():
    CHECKER.checks(_name)(lambda value, text=_text: not isinstance(value, str) or value == text)
_ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)


def instance(draw, schema, root, left=12):
    """A value that might be valid by `schema`. `left`: references, one inside the other, that may
    follow: some schemas have no value that ends.
    """
    if schema is True or not schema.keys() - {"$defs"}:
        return draw(_ANY)
    if "$ref" in schema:
        hypothesis.assume(left)
        target = root["$defs"][schema["$ref"].rpartition("/")[2]]
        return instance(draw, target, root, left - 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in schema:
            return instance(draw, draw(st.sampled_from(schema[keyword])), root, left)
    kind = schema.get("type", "null")
    match kind if isinstance(kind, str) else draw(st.sampled_from(kind)):
        case "boolean":
            return draw(st.booleans())
        case "integer" | "number":
            multiple = schema.get("multipleOf", 1)
            value = multiple * draw(st.integers(-400, 2000))
            return int(value) if value == int(value) else value
        case "string":
            return _string(draw, schema)
        case "array":
            return _array(draw, schema, root, left)
        case "object":
            return _object(draw, schema, root, left)
    return None


def _string(draw, schema):
    if "pattern" in schema:
        return draw(_of_pattern(schema["pattern"]))
    if "format" in schema:
        return _FORMATS[schema["format"]]
    least = schema.get("minLength", 0)
    return draw(st.text(min_size=least, max_size=max(schema.get("maxLength", 10), least)))


def _of_pattern(pattern):
    """Python's `$` comes before a line break, too; JSON Schema's doesn't."""
    return st.from_regex(re.compile(pattern.replace("$", r"\Z"), re.ASCII))


def _array(draw, schema, root, left):
    first, items = schema.get("prefixItems", []), schema.get("items", True)
    number = draw(st.integers(schema.get("minItems", 0), max(schema.get("maxItems", 3), 0)))
    schemas = [first[i] if i < len(first) else items for i in range(number)]
    return [instance(draw, one, root, left) for one in schemas]


def _object(draw, schema, root, left):
    found = {}
    for name, value in schema.get("properties", {}).items():
        if value is not False and (name in schema.get("required", ()) or draw(st.booleans())):
            found[name] = instance(draw, value, root, left)
    others = schema.get("additionalProperties", True)
    names = [n for n in schema.get("required", ()) if n not in found]
    if others is not False:
        names += draw(st.lists(st.text(max_size=5), max_size=2))
        found |= {n: instance(draw, others, root, left) for n in names if n not in found}
    for pattern, value in schema.get("patternProperties", {}).items():
        if draw(st.booleans()):
            found[draw(_of_pattern(pattern))] = instance(draw, value, root, left)
    return found
