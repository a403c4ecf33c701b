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


def of(names, *required, **more):
    """A schema of objects with these properties, numbers where no more is said."""
    properties = names if isinstance(names, dict) else dict.fromkeys(names, NUMBER)
    more |= {"required": list(required)} if required else {}
    return {"type": "object", "properties": properties, **more}


SCHEMAS = {
    "a pattern of one declared name": CLOSED
    | of({"score": SCORE}, "score", patternProperties={"^score$": NUMBER}),
    "a pattern of declared names": CLOSED
    | of(["a1", "a2"], patternProperties={"^a[12]$": {"minimum": 3}}),
    "a pattern without values": {**CLOSED, "patternProperties": {"^a": False, "^b": NUMBER}},
    "a pattern that matches all": of(
        "a", patternProperties={"": NUMBER}, additionalProperties=NUMBER
    ),
    "all have come": CLOSED | of("ab"),
    "no more": CLOSED | of("abc", maxProperties=2),
    "no more beside required ones": of("abc", "b", "c", maxProperties=3),
    "just the required ones": of("ab", "b", maxProperties=1),
    "none": {"type": "object", "maxProperties": 0},
    "others, counted": {"type": "object", "minProperties": 1, "maxProperties": 2},
    "names that need others": CLOSED
    | of(
        {"a": NUMBER, "b": NUMBER, "c": {"type": "integer", "enum": []}},
        dependentRequired={"a": ["b"], "b": ["c"]},
    ),
    "a value that can't be": CLOSED
    | of({"a": {"minimum": 4, "maximum": 3, "type": "number"}, "b": NUMBER}),
    "no such multiple": CLOSED | of({"a": {**SCORE, "minimum": 21, "maximum": 24}, "b": SCORE}),
    "values of an enum": CLOSED
    | of({"a": {"enum": [1, 2.5, "x", None], "type": ["integer", "string"]}}, "a"),
    "objects of an enum": {"enum": [{"a": 1}, {"a": 2, "b": 3}, []], "required": ["b"]},
    "parts of a multiple": {"type": "number", "multipleOf": 0.25, "minimum": 1, "maximum": 2},
    "itself": CLOSED | of({"a": {"$ref": "#"}, "b": {"anyOf": [{"$ref": "#"}, NUMBER]}}, "b"),
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
