"""How much a constraint may say, and what is wrong with one: by the numbers and the words."""

import json

import pytest

from switchyard import engine
from switchyard.engine.grammar import constraints
from tests.engine.failing import names

START = 'start: "a"\n'
# More than half of the time that a grammar may take
SLOW = json.dumps({"type": "string", "pattern": "a?" * 900})


def comment(size):
    return START + "#" + "x" * (size - len(START) - 1)


def const(size):
    return {"const": "x" * (size - len('{"const": ""}'))}


def brackets(number):
    return "start: " + "(" * number + '"a"' + ")" * number


CONJUNCTIONS = "start: A\nA: /a/" + " & /a/" * 8
SCHEMAS = f"start: a\na: %json {SLOW}\n"
MORE_SCHEMAS = f"start: a b\na: %json {SLOW}\nb: %json {SLOW}\nc: %json true\n"


@pytest.mark.parametrize(
    ("make", "most", "more", "refusal"),
    [
        (constraints.regex, "a" * 65536, "a" * 65537, "more than 65536 characters"),
        (constraints.grammar, comment(65536), comment(65537), "more than 65536 characters"),
        (constraints.json_schema, const(131072), const(131073), "more than 131072 characters"),
        (constraints.grammar, brackets(1499), brackets(1500), "more than 1500 rules and brackets"),
        (constraints.grammar, CONJUNCTIONS, CONJUNCTIONS + " & /a/", "more than 8 &"),
        (constraints.grammar, SCHEMAS, MORE_SCHEMAS, "too long to compile"),
    ],
    ids=["pattern", "grammar", "schema", "brackets", "conjunctions", "schemas"],
)
def test_so_much_is_taken_and_no_more(make, most, more, refusal):
    assert make(most)
    with pytest.raises(engine.InvalidJob, match=refusal, check=names("constraint")):
        make(more)


NOT_JSON = "the text after %json is not valid JSON"


@pytest.mark.parametrize(
    ("make", "told", "refusal"),
    [
        (constraints.regex, "", "the regular expression is empty"),
        (constraints.choice, [], "there must be at least one choice"),
        (constraints.choice, ["a", ""], "no choice may be empty"),
        (constraints.grammar, START + "b: %json nothing", NOT_JSON),
        (constraints.grammar, START + "b: %json " + "[" * 9999, NOT_JSON),
        (constraints.grammar, START + 'b: "x\nc: "y"', "the string on line 2 has no end"),
        (constraints.grammar, START + "\nb: /x", "the regular expression on line 3 has no end"),
        (constraints.grammar, START + "b: /x/ & /\\d+/ # <|im_end|>\nc: <x>", "special tokens"),
        (constraints.grammar, START + "b[max_tokens = 3]: /x/", "max_tokens is not supported"),
        (constraints.grammar, START + "b[temperature=0.5]: /x/", "temperature is not supported"),
        (constraints.grammar, START + 'b[stop="y"]: /x/', "stop is not supported"),
        (constraints.grammar, START + "b[stop_capture=c]: /x/", "stop_capture is not supported"),
        (constraints.grammar, START + 'b: "x" ' + "{1}" * 1500, "more than 1500 rules"),
        (constraints.grammar, "start: " + '"a"? ' * 1300, "too long to compile"),
        (constraints.grammar, START + f"b: /{'a?' * 900}/\nc: %json {SLOW}", "too long"),
        (constraints.grammar, START + f"b: /{'a?' * 700}/\nc: /{'a?' * 700}/", "too long"),
        (constraints.json_schema, [], "the schema must be an object"),
        (constraints.json_schema, False, "the schema must be an object"),
        (constraints.json_schema, {"const": float("nan")}, "the schema is not JSON"),
    ],
)
def test_what_is_wrong_is_said(make, told, refusal):
    with pytest.raises(engine.InvalidJob, match=refusal, check=names("constraint")):
        make(told)


@pytest.mark.parametrize(
    "text",
    [
        'start: "<|im_end|>"',  # characters, and no token
        "start: /<x>/",
        'start: "a" // temperature=0.5 <x>',
        'start: "a" # max_tokens=1 "',
        'start: %json {"const": "<x> temperature=1"}',
        'start: "temperature=" /&&&&&&&&&&/',
    ],
)
def test_what_a_text_says_is_no_part_of_its_grammar(text):
    assert constraints.grammar(text)


@pytest.mark.parametrize(
    "text",
    [
        'start: "a"',
        ' \tstart : "a"',
        '// a comment\nb: "b"\nstart: b',
        '%llguidance {}\n_start: "a"',
        '\n  %llguidance {}\nb: "b"',
    ],
)
def test_a_text_with_larks_first_rule_or_options_is_lark(text):
    """Which GBNF's reader would refuse."""
    assert json.loads(constraints.grammar(text).grammar)["grammars"] == [{"lark_grammar": text}]


@pytest.mark.parametrize("text", ['root ::= "start:"', 'root ::= "a" # start: "a"'])
def test_a_text_without_them_is_gbnf(text):
    [grammar] = json.loads(constraints.grammar(text).grammar)["grammars"]
    assert grammar["lark_grammar"].startswith("%llguidance {}\n")
