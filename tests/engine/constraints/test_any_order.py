"""A text that a schema admits comes out as the model would have written it."""

import json
import re

import hypothesis
import pytest
from hypothesis import strategies as st

from switchyard import engine
from switchyard.app.chat import calls
from switchyard.app.chat.tools import Offer, Tool
from switchyard.app.parts.call_formats import FORMATS
from switchyard.engine.grammar import constraints
from tests.engine.constraints.unspoiled import arguments_and_texts, left_at, schemas_and_texts
from tests.engine.random_forms import NAMES

SETTINGS = hypothesis.settings(
    phases=[hypothesis.Phase.generate],
    max_examples=30,
    suppress_health_check=list(hypothesis.HealthCheck),
    derandomize=True,
)

THOUGHTS = '<think>\nHm: {"a" or <so>\n</think>\n\n'

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "age": {"type": "integer"}}}
NODE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "left": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                "more": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["name"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
BASE = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}
MERGED = {"type": "object", "allOf": [BASE, {"properties": {"a": {"minimum": 5}, "b": {}}}]}
DEPENDENT = {
    "type": "object",
    "properties": {name: {"type": "integer"} for name in "abc"},
    "dependentRequired": {"a": ["b"], "b": ["d"]},
    "additionalProperties": False,
}
DEPENDENT["properties"]["d"] = {"type": "integer"}
MAPS = {
    "type": "object",
    "properties": {"x1": {"type": "integer"}},
    "patternProperties": {"^x": {"type": "integer"}, "^y": {"type": "string"}},
    "additionalProperties": {"type": "boolean"},
}
PAIR = {
    "type": "object",
    "properties": {"a": {}, "b": {}, "c": {}},
    "minProperties": 2,
    "maxProperties": 2,
    "additionalProperties": False,
}
COUNTED = {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"]}
COUNTED |= {"maxProperties": 2, "minProperties": 2}
TAGGED = {
    "oneOf": [
        {"properties": {"kind": {"const": k}, "v": {"type": t}}, "required": ["kind", "v"]}
        | {"type": "object", "additionalProperties": False}
        for k, t in (("ka", "integer"), ("kb", "string"))
    ]
}
ARRAY = {"type": "array", "prefixItems": [{}, CITY, {"const": 1}], "minItems": 1, "maxItems": 4}


def check(grammars, schema, text):
    constraint = constraints.json_schema(schema)
    return left_at(grammars, constraint, grammars.tokenizer.tokenize_str(text))


@SETTINGS
@hypothesis.given(schemas_and_texts())
def test_what_a_schema_admits_is_never_spoiled(layout, pair):
    schema, text = pair
    try:
        constraints.json_schema(schema)
    except engine.InvalidJob:
        hypothesis.assume(False)
    assert check(layout, schema, text) is None


def with_tags(grammars, text):
    """The tokens of a text as a model writes it: with the tags that are tokens."""
    ids = grammars.model_tokenizer.tag_ids
    parts = re.split(f"({'|'.join(map(re.escape, ids))})", text) if ids else [text]
    for part in parts:
        yield from [ids[part]] if part in ids else grammars.tokenizer.tokenize_str(part)


@SETTINGS
@hypothesis.given(
    arguments_and_texts(),
    st.sampled_from([*FORMATS]),
    st.sampled_from(["must", "may", "form"]),
    st.sampled_from(["", THOUGHTS]),
)
def test_what_a_tool_admits_is_never_spoiled(layout, pair, name, kind, thoughts):
    schema, text = pair
    tool = {"name": "get_weather", "parameters": schema, "strict": kind == "may"}
    offer = Offer((Tool.model_validate({"type": "function", "function": tool}),), kind == "must")
    form = constraints.json_schema({"properties": {"name": {}}, "type": "object"})
    format = FORMATS[name]
    try:
        constraint = calls.constraint(
            offer, format, Model(layout), form if kind == "form" else None
        )
    except engine.InvalidJob:
        hypothesis.assume(False)
    tag_ids = layout.model_tokenizer.tag_ids
    constraint = constraints.after_thoughts(constraint, "<think>", "</think>", tag_ids)
    call = f"{thoughts}{format.opening}{format.call('get_weather', text)}{format.closing}"
    assert left_at(layout, constraint, with_tags(layout, call)) is None


class Model:
    """What constraints of calls ask of a model."""

    def __init__(self, grammars):
        self.tokenizer, self._grammars = grammars.model_tokenizer, grammars

    def check_constraint(self, constraint):
        self._grammars.matcher(constraint.grammar)


ADMITTED = [
    (CITY, '{"age": 30, "city": "Rome"}'),
    (CITY, '{"n\\u0061me": null, "cit\\u0079": "\\u0052\\/", "age": 1}'),
    (CITY, "{}"),
    (
        NODE,
        '{"left": {"name": "b", "left": null}, "more": [{"more": [], "name": ""}], "name": "a"}',
    ),
    (MERGED, '{"b": {"x": 1}, "c": [], "a": 5}'),
    (DEPENDENT, '{"d": 1, "c": 2}'),
    (DEPENDENT, '{"a": 1, "d": 2, "b": 3}'),
    (MAPS, '{"z": true, "x2": 3, "y": "", "x1": 4}'),
    (PAIR, '{"c": 1, "a": 2}'),
    (COUNTED, '{"z": 1, "a": 2}'),
    (COUNTED, '{"b": 1, "a": 2}'),
    (TAGGED, '{"v": "x", "kind": "kb"}'),
    (TAGGED, '{"v": 1, "kind": "ka"}'),
    (ARRAY, '[0, {"age": 1}, 1, "more"]'),
    ({"enum": [{"b": [1], "a": "é"}, []]}, '{"a": "\\u00e9", "b": [1]}'),
    ({"const": "a/b"}, '"\\u0061\\/b"'),
    ({"properties": {"\x00\n": {}}, "required": ["\x00\n"], "type": "object"}, '{"\\u0000\\n":1}'),
    ({"maxLength": 1, "type": "string"}, '"\\ud83d\\ude00"'),
    ({}, '{"\\u0061": [{"b": "\\ud83d\\ude00"}, -1.5e3, [ ]]}'),
]
REFUSED = [
    (CITY, '{"age": 1, "ag\\u0065": 2}'),
    (CITY, '{"\\u0061ge": 1, "age": 2}'),
    (CITY, '{"city": 1}'),
    (CITY, '{"c\\u0069ty": 1}'),
    (NODE, '{"left": null}'),
    (MERGED, '{"a": 4}'),
    (MERGED, '{"b": 4}'),
    (DEPENDENT, '{"a": 1, "b": 2}'),
    (DEPENDENT, '{"b": 2}'),
    (MAPS, '{"x1": 1, "x\\u0031": 2}'),
    (MAPS, '{"x1": 1, "x1": 2}'),
    (MAPS, '{"z": 1}'),
    (MAPS, '{"y1": 1}'),
    (PAIR, '{"a": 1}'),
    (PAIR, '{"a": 1, "b": 2, "c": 3}'),
    (COUNTED, '{"z": 1, "b": 2}'),
    (COUNTED, '{"a": 1}'),
    (COUNTED, '{"a": 1, "b": 2, "c": 3}'),
    (TAGGED, '{"v": "x", "kind": "ka"}'),
    (ARRAY, "[0, {}, 2]"),
    (ARRAY, "[]"),
    ({"type": "string"}, '"\\ud83d"'),
]


@pytest.mark.parametrize(("schema", "text"), ADMITTED)
def test_a_text_that_is_valid_is_admitted(grammars, schema, text):
    assert check(grammars, schema, text) is None


@pytest.mark.parametrize(("schema", "text"), REFUSED)
def test_a_text_that_is_not_valid_is_refused(grammars, schema, text):
    assert check(grammars, schema, text) is not None


def test_more_properties_than_a_rule_has_bits_come_in_any_order_within_blocks(grammars):
    names = [f"p{i}" for i in range(150)]
    required = names[::3]
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
    schema |= {"required": required, "additionalProperties": False}
    blocks = [names[i : i + 64][::-1] for i in range(0, 150, 64)]
    shuffled = [name for block in blocks for name in block]
    for order in (names, shuffled, required):
        assert check(grammars, schema, json.dumps(dict.fromkeys(order, 1))) is None
    for order in (names[1:], names[:-3], [*names[:70], names[3]]):
        text = "{" + ", ".join(f'"{name}": 1' for name in order) + "}"
        assert check(grammars, schema, text) is not None


def test_names_of_all_kinds_come_once(grammars):
    schema = {"type": "object", "properties": {name: {"type": "null"} for name in NAMES}}
    schema |= {"required": NAMES, "additionalProperties": False}
    assert check(grammars, schema, json.dumps(dict.fromkeys(reversed(NAMES)))) is None
    assert check(grammars, schema, json.dumps(dict.fromkeys(NAMES[:-1]))) is not None
