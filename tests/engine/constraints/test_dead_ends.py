"""A constraint never leads to where no token may follow, whatever the model draws."""

import heapq
import itertools
import json
import random

import jsonschema
import pytest

from switchyard import engine
from switchyard.engine.grammar import constraints

SCORE = {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 20}
CLOSED = {"type": "object", "additionalProperties": False}
NUMBER = {"type": "integer"}
SCHEMAS = {
    "a pattern of one declared name": {
        **CLOSED,
        "properties": {"score": SCORE},
        "patternProperties": {"^score$": NUMBER},
        "required": ["score"],
    },
    "a pattern of declared names": {
        **CLOSED,
        "properties": {"a1": NUMBER, "a2": NUMBER},
        "patternProperties": {"^a[12]$": {"minimum": 3}},
    },
    "a pattern without values": {**CLOSED, "patternProperties": {"^a": False, "^b": NUMBER}},
    "a pattern that matches all": {
        "type": "object",
        "properties": {"a": NUMBER},
        "patternProperties": {"": NUMBER},
        "additionalProperties": NUMBER,
    },
    "all have come": {**CLOSED, "properties": dict.fromkeys("ab", NUMBER)},
    "no more": {**CLOSED, "properties": dict.fromkeys("abc", NUMBER), "maxProperties": 2},
    "no more beside required ones": {
        "type": "object",
        "properties": dict.fromkeys("abc", NUMBER),
        "required": ["b", "c"],
        "maxProperties": 3,
    },
    "just the required ones": {
        "type": "object",
        "properties": dict.fromkeys("ab", NUMBER),
        "required": ["b"],
        "maxProperties": 1,
    },
    "none": {"type": "object", "maxProperties": 0},
    "others, counted": {"type": "object", "minProperties": 1, "maxProperties": 2},
    "names that need others": {
        **CLOSED,
        "properties": {"a": NUMBER, "b": NUMBER, "c": {"type": "integer", "enum": []}},
        "dependentRequired": {"a": ["b"], "b": ["c"]},
    },
    "a value that can't be": {
        **CLOSED,
        "properties": {"a": {"minimum": 4, "maximum": 3, "type": "number"}, "b": NUMBER},
    },
    "no such multiple": {
        **CLOSED,
        "properties": {"a": {**SCORE, "minimum": 21, "maximum": 24}, "b": SCORE},
    },
    "values of an enum": {
        **CLOSED,
        "properties": {"a": {"enum": [1, 2.5, "x", None], "type": ["integer", "string"]}},
        "required": ["a"],
    },
    "objects of an enum": {"enum": [{"a": 1}, {"a": 2, "b": 3}, []], "required": ["b"]},
    "parts of a multiple": {"type": "number", "multipleOf": 0.25, "minimum": 1, "maximum": 2},
    "itself": {
        "type": "object",
        "properties": {"a": {"$ref": "#"}, "b": {"anyOf": [{"$ref": "#"}, NUMBER]}},
        "required": ["b"],
        "additionalProperties": False,
    },
    "items that can't be": {"type": "array", "prefixItems": [NUMBER, False], "items": NUMBER},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_each_walk_comes_to_an_end_that_is_valid(grammars, name):
    schema = SCHEMAS[name]
    ends = set(grammars.tokenizer.eos_tokens)
    lengths = [0 if i in ends else 1 + len(piece) for i, piece in enumerate(grammars.pieces)]
    by_length = lengths.__getitem__
    for seed in range(20):
        rng = random.Random(seed)
        matcher = grammars.matcher(constraints.json_schema(schema).grammar)
        text, length = b"", rng.randrange(60)
        while not matcher.is_stopped():
            allowed = matcher.compute_logit_bias()
            tokens = list(itertools.compress(range(len(allowed)), allowed))
            assert tokens and not matcher.is_error(), text
            if len(text) >= length:
                tokens = heapq.nsmallest(3, tokens, by_length)
            token_id = rng.choice(tokens)
            if token_id in ends:
                break
            assert matcher.consume_token(token_id)
            text += grammars.pieces[token_id]
            if len(text) > 2000:
                break  # long, and alive
        else:
            jsonschema.validate(json.loads(text), schema)


IMPOSSIBLE = {
    "#": {"allOf": [{**CLOSED, "required": ["a"]}]},
    "#/properties/b": {
        "type": "object",
        "properties": {"a": NUMBER, "b": {**SCORE, "minimum": 21, "maximum": 24}},
        "required": ["b"],
    },
    "#/items": {"type": "array", "items": {"type": "string", "maxLength": 1, "minLength": 2}}
    | {"minItems": 1},
}


@pytest.mark.parametrize("place", IMPOSSIBLE)
def test_what_no_text_can_be_is_refused_at_its_place(place):
    with pytest.raises(engine.InvalidJob, match=f"at {place} is not supported") as caught:
        constraints.json_schema(IMPOSSIBLE[place])
    assert "unsatisfiable" in str(caught.value)
