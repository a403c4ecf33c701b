"""Constrained outputs, by the real generator."""

import json
import re

import pytest

from switchyard import engine
from switchyard.engine.grammar import constraints
from switchyard.engine.sampling import Sampling
from tests.engine.forced import ending, run
from tests.scripted import job

HOT = 1.5
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "pets": {"type": "array", "items": {"enum": ["cat", "dog"]}, "maxItems": 3},
    },
    "required": ["name", "age", "pets"],
    "additionalProperties": False,
}


def complete(backend, constraint, seed=0, max_new_tokens=200, **more):
    """(text, finish_reason) of one job."""
    sampling = Sampling(temperature=HOT, seed=seed)
    one = job(
        "a", max_new_tokens, prompt=(1, 300), sampling=sampling, constraint=constraint, **more
    )
    told = ending(run(backend, one)["a"])
    assert isinstance(told.last, engine.Finished), told.last
    return told.text, told.last.finish_reason


def test_json_by_a_schema(backend):
    for seed in range(5):
        text, reason = complete(backend, constraints.json_schema(PERSON), seed)
        assert reason == "stop"
        person = json.loads(text)
        assert sorted(person) == ["age", "name", "pets"] and len(person["name"]) <= 12
        assert 0 <= person["age"] <= 120 and set(person["pets"]) <= {"cat", "dog"}


def test_any_json_object(backend):
    ended = 0
    for seed in range(5):
        text, reason = complete(backend, constraints.json_object(), seed)
        assert text.lstrip().startswith("{")
        if reason == "stop":
            ended += 1
            assert isinstance(json.loads(text), dict)
    assert ended


def test_a_regular_expression(backend):
    pattern = r"[A-Z][a-z]{2,5}-\d{3}"
    text, reason = complete(backend, constraints.regex(pattern))
    assert reason == "stop" and re.fullmatch(pattern, text)


def test_one_of_several_choices(backend):
    choices = ["yes", "no", "don't know", "<|im_end|>", "日本"]
    seen = {complete(backend, constraints.choice(choices), seed) for seed in range(20)}
    assert seen <= {(choice, "stop") for choice in choices} and len(seen) > 2


@pytest.mark.parametrize(
    "text",
    [
        'root ::= "(" [0-9]+ ("," " "? [0-9]+){1,2} ")"',
        'start: "(" NUMBER ("," " "? NUMBER){1,2} ")"\nNUMBER: /[0-9]+/',
    ],
)
def test_a_grammar_in_gbnf_or_lark(backend, text):
    for seed in range(2):
        told, reason = complete(backend, constraints.grammar(text), seed)
        assert reason == "length" or re.fullmatch(r"\(\d+(, ?\d+){1,2}\)", told)


@pytest.mark.parametrize(
    ("text", "told"), [(r'start: "\""', '"'), (r'start: "a\\" "b"', "a\\b"), (r"start: /\//", "/")]
)
def test_what_is_escaped_ends_no_text_of_a_grammar(backend, text, told):
    assert complete(backend, constraints.grammar(text)) == (told, "stop")


def test_a_template_of_literals_and_schemas(backend):
    tools = [('{"name": "a", "arguments": ', PERSON), ('{"name": "b", "arguments": ', {})]
    alternatives = [(before, schema, "}\n</tool_call>") for before, schema in tools]
    calls = constraints.template(alternatives[:1], "<tool_call>\n", separator="\n<tool_call>\n")
    text, reason = complete(backend, calls)
    assert text.startswith('<tool_call>\n{"name": "a", "arguments": {')
    assert reason == "length" or text.endswith("}\n</tool_call>")
    special_ids = {"</s>": 2, "<|im_start|>": 3}
    one = constraints.template(alternatives[:1], "<|im_start|>a</s>", special_ids=special_ids)
    events = run(backend, job("a", 100, prompt=(1, 300), constraint=one))["a"]
    assert next(e for e in events if isinstance(e, engine.Chunk)).token_ids == (3,)
