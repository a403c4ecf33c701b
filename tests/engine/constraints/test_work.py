"""What a schema may cost: much is quick, and more is refused before it is done."""

import json
import time

import pytest

from switchyard import engine
from switchyard.engine.grammar import constraints

NUMBER = {"type": "integer"}
CLOSED = {"type": "object", "additionalProperties": False}
MULTIPLE = {**NUMBER, "multipleOf": 997}


def an_object(names, **more):
    return {"type": "object", "properties": dict.fromkeys(names, NUMBER), **more}


def tagged(i):
    return an_object(["v"], required=["kind"]) | {"properties": {"kind": {"const": i}, "v": NUMBER}}


WIDE = {
    "items": {"type": "array", "prefixItems": [{"const": i} for i in range(2000)]},
    "options": {"oneOf": [tagged(i) for i in range(500)]},
    "objects": an_object([])
    | {"properties": {f"a{i}": an_object([f"b{i}_{j}" for j in range(10)]) for i in range(200)}},
    "long names": an_object([f"{i:*>40}" for i in range(2000)]),
    "counted names": an_object([f"name{i}" for i in range(150)], maxProperties=70),
    "values": {"enum": [f"value {i}" for i in range(5000)]},
    "numbers": {"enum": [*range(10_000)]},
    "bounds": {"anyOf": [{**NUMBER, "minimum": i * 10**13, "maximum": 2**53} for i in range(100)]},
    "multiples": {"anyOf": [{**MULTIPLE, "minimum": i, "maximum": i + 10**7} for i in range(20)]},
}
TOO_MUCH = {
    "multiples": {"anyOf": [{**MULTIPLE, "minimum": i, "maximum": i + 10**9} for i in range(100)]},
    "options that are alike": {"oneOf": [an_object([f"v{i}"]) for i in range(200)]},
    "values": {"enum": [[i] for i in range(8000)]},
    "patterns": {
        "allOf": [
            {"anyOf": [{"type": "string", "pattern": f"^a{i}"} for i in range(30)]},
            {"anyOf": [{"type": "string", "minLength": i} for i in range(30)]},
        ]
    },
    "references": {
        "properties": {f"p{i}": {"$ref": f"#/$defs/a{i}"} for i in range(1000)},
        "$defs": {f"a{i}": {"$ref": f"#/$defs/a{i + 1}", "minimum": i} for i in range(1000)}
        | {"a1000": NUMBER},
    },
    "values of branches": {"enum": [*range(5000)], "anyOf": [{"minimum": i} for i in range(300)]},
}


@pytest.mark.parametrize("name", WIDE)
def test_what_is_wide_is_quick(grammars, name):
    schema = json.loads(json.dumps(WIDE[name]))  # each schema at its own place
    begin = time.thread_time()
    grammars.matcher(constraints.json_schema(schema).grammar)
    assert time.thread_time() - begin < 2  # of this thread, whatever runs beside it


@pytest.mark.parametrize("name", TOO_MUCH)
def test_too_much_work_is_refused_before_it_is_done(name):
    schema = json.loads(json.dumps(TOO_MUCH[name]))
    begin = time.thread_time()
    with pytest.raises(engine.InvalidJob, match=r"schema at #.* take too long to compile"):
        constraints.json_schema(schema)
    assert time.thread_time() - begin < 2


def test_of_long_names_only_the_plain_spelling_is_taken(grammars):
    names = [f"{i:x>40}" for i in range(300)]
    grammar = constraints.json_schema(an_object(names)).grammar
    for spelled, is_taken in ((names[-1], True), (f"\\u0078{names[-1][1:]}", False), ("y", True)):
        matcher = grammars.matcher(grammar)
        tokens = grammars.tokenizer.tokenize_str(f'{{"{spelled}": 1}}')
        assert (matcher.try_consume_tokens(tokens) == len(tokens)) == is_taken
