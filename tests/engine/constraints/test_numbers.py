"""Bounds and values of numbers, the largest ones too."""

import json
import subprocess
import sys

import hypothesis
import jsonschema
import pytest
from hypothesis import strategies as st

from switchyard import engine
from switchyard.engine.grammar import constraints
from tests.engine.constraints.test_any_order import check

POWERS = [2**53, 2**63, 2**64]
LARGE = [sign * (power + more) for power in POWERS for sign in (1, -1) for more in (-1, 0, 1)]
LARGE += [1e22, -1e22, 1.7976931348623157e308, 5e-324, 2.0**63, -(2.0**64), -0.0]
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
SCHEMAS = [{keyword: [n]} for n in LARGE for keyword in ("enum", "examples")]
SCHEMAS += [{"const": [n]} for n in LARGE]
SCHEMAS += [{"type": t, k: n} for t in ("integer", "number") for k in BOUNDS for n in LARGE if n]
COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
SCHEMAS += [{k: abs(n)} for k in COUNTS for n in LARGE if isinstance(n, int)]

# llguidance 1.9.1 alone ends the process for some of these values.
CHILD = """
import json, sys
from switchyard import engine
from switchyard.engine.grammar import constraints
from switchyard.engine.grammar.grammars import Grammars
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokenizer import Tokenizer
from tests.conftest import DEMO
grammars = Grammars(Tokenizer(ModelDir.read(DEMO)))
for schema in json.load(sys.stdin):
    print(json.dumps(schema))
    try:
        grammars.matcher(constraints.json_schema(schema).grammar)
    except engine.InvalidJob:
        pass
"""


def test_no_number_of_a_schema_ends_the_process():
    done = subprocess.run(
        [sys.executable, "-c", CHILD], input=json.dumps(SCHEMAS), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout.splitlines()[-1:]
    assert len(done.stdout.splitlines()) == len(SCHEMAS)


@pytest.mark.parametrize("value", [2**63 - 1, 1 - 2**63, 1e22, 1.5e308, -0.0, 5e-324])
def test_the_largest_values_are_written_as_readers_write_them(grammars, value):
    for schema in ({"const": value}, {"enum": [[value]]}):
        text = json.dumps(schema.get("const", [value]))
        assert check(grammars, schema, text) is None


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"items": {"minLength": 2**31}}, "at #/items is not supported: minLength is beyond 2"),
        ({"items": {"minimum": 5e-324, "type": "number"}, "minItems": 1}, "at #/items is not"),
    ],
)
def test_what_is_too_large_is_refused_with_its_place(schema, said):
    with pytest.raises(engine.InvalidJob, match=said):
        constraints.json_schema(schema)


_NUMBERS = st.integers(-6, 6) | st.integers(-24, 24).map(lambda n: n / 4)
_PARTS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(BOUNDS[:4], _NUMBERS),
        "multipleOf": st.sampled_from([1, 2, 3, 5, 0.25, 0.5, 1.5, 0.75]),
    },
)


@hypothesis.settings(max_examples=100, derandomize=True, deadline=None)
@hypothesis.given(st.sampled_from(["integer", "number"]), st.lists(_PARTS, max_size=3))
def test_a_number_is_admitted_where_all_bounds_admit_it(grammars, kind, parts):
    schema = {"type": kind, "allOf": parts} if parts else {"type": kind}
    validator = jsonschema.Draft202012Validator(schema)
    values = [n // 4 if n % 4 == 0 else n / 4 for n in range(-40, 41)]
    valid = [value for value in values if validator.is_valid(value)]
    try:
        matcher = grammars.matcher(constraints.json_schema(schema).grammar)
    except engine.InvalidJob as error:
        assert "unsatisfiable" in str(error) and not valid
        return
    for value in values:
        copy = matcher.deep_copy()
        tokens = grammars.tokenizer.tokenize_str(json.dumps(value))
        is_taken = copy.try_consume_tokens(tokens) == len(tokens) and copy.is_accepting()
        assert is_taken == (value in valid), value
