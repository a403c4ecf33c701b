"""Random JSON schemas and regular expressions, for hypothesis."""

import re

from hypothesis import strategies as st
from hypothesis_jsonschema import from_schema

PATTERNS = ["^[a-z]+$", "^a", "b$", r"\d{2}", "^(x|yz){1,3}$", "^[^ab]{2,4}$", "é|ü", r"^\w\s\w$"]
FORMATS = ["date", "ipv4", "ipv6", "uuid", "email", "time", "date-time", "hostname", "duration"]
NAMES = ["a", "b", "name", "ñ", 'quo"te', "back\\slash", "a b", "", "日本"]

_SMALL = {"type": "integer", "minimum": 0, "maximum": 8}
_NUMBER = {"type": "number", "minimum": -1000, "maximum": 1000}
# What a schema may say of a value of one type: the schemas of its keywords' values, those with a
# question mark may be missing.
_LEAVES = [
    {"type": {"enum": ["null", "boolean", ["null", "boolean"]]}},
    {
        "type": {"enum": ["string", ["string", "null"]]},
        "minLength?": _SMALL,
        "maxLength": {"type": "integer", "minimum": 8, "maximum": 20},
    },
    {"type": {"const": "string"}, "pattern": {"enum": PATTERNS}},
    {"type": {"const": "string"}, "format": {"enum": FORMATS}},
    {
        "type": {"enum": ["integer", "number", ["integer", "string"]]},
        "minimum?": _NUMBER,
        "exclusiveMaximum?": {"type": "number", "minimum": 1000, "maximum": 2000},
    },
    {
        "type": {"enum": ["integer", "number"]},
        "multipleOf": {"enum": [2, 3, 5, 10, 0.5, 0.25]},
        "exclusiveMinimum?": {"type": "integer", "minimum": -50, "maximum": 10},
        "maximum?": {"type": "integer", "minimum": 100, "maximum": 500},
    },
]


def _leaf(keywords):
    # Not one schema of an object: hypothesis-jsonschema 0.23.1 can't make those any more.
    always = {k: from_schema(v) for k, v in keywords.items() if not k.endswith("?")}
    perhaps = {k[:-1]: from_schema(v) for k, v in keywords.items() if k.endswith("?")}
    return st.fixed_dictionaries(always, optional=perhaps)


_VALUES = from_schema(
    {
        "type": ["null", "boolean", "integer", "string", "array"],
        "items": {"type": ["integer", "string"]},
        "maxItems": 3,
        "maxLength": 10,
        "minimum": -(2**53),
        "maximum": 2**53,
    }
)
_REFERENCE = st.just({"$ref": "#/$defs/shared"})
_CONSTANTS = st.one_of(
    st.fixed_dictionaries({"const": _VALUES}),
    st.fixed_dictionaries({"enum": st.lists(_VALUES, min_size=1, max_size=5)}),
)
_SIMPLE = st.one_of(*map(_leaf, _LEAVES), _CONSTANTS, st.just({}), _REFERENCE)


@st.composite
def _objects(draw, inner):
    properties = draw(st.dictionaries(st.sampled_from(NAMES), inner, max_size=4))
    names = [*properties, *draw(st.lists(st.sampled_from(NAMES), max_size=1))]
    schema = {"type": "object", "properties": properties}
    if names:
        schema["required"] = draw(st.lists(st.sampled_from(names), unique=True))
    others = draw(st.one_of(st.just(False), st.just(False), st.booleans(), inner))
    schema["additionalProperties"] = others
    return schema


@st.composite
def _arrays(draw, inner):
    schema = {"type": "array", "maxItems": draw(st.integers(2, 4))}
    if draw(st.booleans()):
        schema["items"] = draw(inner)
    if draw(st.booleans()):
        schema["prefixItems"] = draw(st.lists(inner, min_size=1, max_size=2))
    if draw(st.booleans()):
        schema["minItems"] = draw(st.integers(0, 2))
    return schema


def _maps(inner):
    return st.fixed_dictionaries(
        {
            "type": st.just("object"),
            "patternProperties": st.fixed_dictionaries({"^x": inner, "^y[0-9]": inner}),
            "additionalProperties": st.just(False),
            "maxProperties": st.integers(0, 3),
        }
    )


def _tagged(schemas):
    """Objects of which none can be another."""
    return [
        {
            "type": "object",
            "properties": {"kind": {"const": f"kind {i}"}, "value": schema},
            "required": ["kind"],
            "additionalProperties": False,
        }
        for i, schema in enumerate(schemas)
    ]


def _combinations(inner):
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        st.fixed_dictionaries({"anyOf": several}),
        st.fixed_dictionaries({"oneOf": st.lists(inner, min_size=1, max_size=3).map(_tagged)}),
        st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)}),
    )


_NESTED = st.recursive(
    _SIMPLE,
    lambda inner: st.one_of(
        _objects(inner), _objects(inner), _arrays(inner), _maps(inner), _combinations(inner)
    ),
    max_leaves=8,
)


@st.composite
def schemas(draw):
    """JSON schemas; some can't be valid for anything, some aren't supported."""
    schema = draw(st.one_of(_objects(_NESTED), _arrays(_NESTED), _NESTED))
    # Not what might be a reference to itself alone: validators don't come back from that.
    shared = draw(st.one_of(_objects(_NESTED), _arrays(_NESTED)))
    return {**schema, "$defs": {"shared": shared}}


_CHARACTERS = st.sampled_from(
    [*"abcXYZ019 _-", "é", "ß", "日", *map(re.escape, '.*+?()[]{}|^$\\/"')]
)
_CLASSES = st.sampled_from(
    ["[a-z]", "[A-F0-9]", "[^a-z]", "[äöü]", r"\d", r"\w", r"\s", r"\D", ".", r"[\w.-]", r"[^\s\d]"]
)
_QUANTIFIERS = st.sampled_from(["?", "*", "+", "{2}", "{1,3}", "{0,4}", "{2,}", "*?", "+?"])


def regexes():
    """Regular expressions that Python and Rust read alike, with re.ASCII."""
    return st.recursive(
        st.one_of(_CHARACTERS, _CHARACTERS, _CLASSES),
        lambda inner: st.one_of(
            st.lists(inner, min_size=2, max_size=5).map("".join),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
            st.tuples(inner, _QUANTIFIERS).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        ),
        max_leaves=10,
    )
