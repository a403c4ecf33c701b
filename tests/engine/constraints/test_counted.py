"""Objects with a number of properties, and with more names than a rule's parameter has bits."""

import json

import hypothesis
import jsonschema
from hypothesis import strategies as st

from switchyard import engine
from switchyard.engine.grammar import constraints
from switchyard.engine.grammar.schema import objects
from tests.engine.constraints.test_any_order import check

NAMES = "abcdefgh"


@st.composite
def objects_and_members(draw):
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
    schema = {"type": "object", "properties": {name: {"type": "null"} for name in names}}
    schema["required"] = draw(st.lists(st.sampled_from(names), unique=True))
    if draw(st.booleans()):
        schema["additionalProperties"] = False
    for keyword in ("minProperties", "maxProperties"):
        if draw(st.booleans()):
            schema[keyword] = draw(st.integers(0, 9))
    members = draw(st.lists(st.sampled_from([*names, "z"]), unique=True))
    return schema, draw(st.permutations(sorted({*members, *schema["required"]})))


def steps(matcher, grammars, text):
    """Whether each byte of the text is allowed where it stands."""
    tokens = grammars.tokenizer.tokenize_str(text)
    for token_id in tokens:
        allowed = matcher.compute_logit_bias()
        assert any(allowed), "a dead end"
        if not allowed[token_id] or not matcher.consume_token(token_id):
            return False
    assert matcher.is_accepting() or any(matcher.compute_logit_bias()), "a dead end"
    return matcher.is_accepting()


@hypothesis.settings(max_examples=200, derandomize=True, deadline=None)
@hypothesis.given(st.sampled_from([64, 6]), objects_and_members())
def test_a_number_of_properties_is_kept_in_any_order(grammars, bits, pair):
    """With few bits, names come in blocks: some orders are refused, no invalid one is taken."""
    schema, members = pair
    before, objects.BITS = objects.BITS, bits
    try:
        constraint = constraints.json_schema(schema)
    except engine.InvalidJob as error:
        counts = schema.get("minProperties", 0), schema.get("maxProperties", 99)
        least = max(len(schema["required"]), counts[0])
        most = len(schema["properties"]) if "additionalProperties" in schema else 99
        is_open_count = most == 99 and counts[0] > len(schema["required"]) + 1
        assert is_open_count or least > min(most, counts[1]), error
        return
    finally:
        objects.BITS = before
    valid = jsonschema.Draft202012Validator(schema).is_valid(dict.fromkeys(members))
    text = "{" + ",".join(f'"{name}":null' for name in members) + "}"
    is_taken = steps(grammars.matcher(constraint.grammar), grammars, text)
    if is_taken or bits == 64:
        assert is_taken == valid
    listed = sorted(members, key=[*schema["properties"], "z"].index)
    text = "{" + ",".join(f'"{name}":null' for name in listed) + "}"
    assert steps(grammars.matcher(constraint.grammar), grammars, text) == valid


def test_a_limit_beside_as_many_properties_as_bits(grammars):
    names = [f"p{i}" for i in range(63)]
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
    schema["maxProperties"] = 30
    assert check(grammars, schema, json.dumps(dict.fromkeys(names[:30], 1))) is None
    assert check(grammars, schema, json.dumps(dict.fromkeys(names[:31], 1))) is not None
