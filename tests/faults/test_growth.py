"""Texts of clients that are made to take long: twice the text takes about twice the time, or is
refused. All that a request thread does to a text may hold up the engine thread.
"""

import contextlib
import json
import random
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from switchyard import engine
from switchyard.app.exceptions import BadRequest
from switchyard.app.request.constraint import Constrained
from switchyard.app.request.validation import validate
from switchyard.engine.grammar import constraints
from switchyard.engine.grammar.grammars import Grammars
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokenizer import Tokenizer
from switchyard.engine.model.tokens.vocabulary import Vocabulary
from tests.conftest import DEMO
from tests.growth import assert_within

LENGTH = 15_000  # of the shorter text, in characters
SLACK = 0.05  # seconds that say nothing


@pytest.fixture(scope="module")
def grammars():
    return Grammars(Tokenizer(ModelDir.read(DEMO)))


def chain(length):
    """Rules, each a terminal once the next one is; and one that refers to many of them."""
    number = length // 40
    rules = [f"r{i} ::= r{i + 1}" for i in range(number)]
    last = f'r{number} ::= a\na ::= "a"\nz ::= {"a " * (length // 4)} z'
    return "\n".join(["root ::= r0", *rules, last])


# Each of about that many characters.
GRAMMARS = {
    "a string without an end": lambda n: 'start: "' + '\\"' * (n // 2),
    "a string of lines without an end": lambda n: "start: " + '"\\\n' * (n // 3),
    "a regular expression without an end": lambda n: "start: " + "/\\" * (n // 2),
    "strings": lambda n: "start: " + '""' * (n // 2),
    "blank lines": lambda n: "\n" * n,
    "lines of spaces": lambda n: " \n" * (n // 2),
    "spaces": lambda n: "start" + " " * n,
    "comments": lambda n: 'start: "a"\n' + "//\n" * (n // 3),
    "names": lambda n: "start: " + "a " * (n // 2),
    "attributes": lambda n: "start: " + "stop " * (n // 5),
    "brackets": lambda n: "start: " + "(" * n,
    "alternatives": lambda n: "start: " + "|".join(f'"{i:05}"' for i in range(n // 8)),
    "schemas": lambda n: "start: " + "%json {} " * (n // 9),
    "schemas without an end": lambda n: "start: " + "%json {" * (n // 7),
    "comments of GBNF": lambda n: 'root ::= "a"\n' + "#\n" * (n // 2),
    "a literal of GBNF without an end": lambda n: 'root ::= "' + "a" * n,
    "a class of GBNF without an end": lambda n: "root ::= " + "[\\" * (n // 2),
    "groups of GBNF": lambda n: "root ::= " + "(" * n,
    "alternatives of GBNF": lambda n: "root ::= " + "|".join(['"a"'] * (n // 4)),
    "rules of GBNF in a chain": chain,
}


def assert_linear(take, make, short=LENGTH, long=2 * LENGTH, factor=3):
    def work(text):
        with contextlib.suppress(engine.InvalidJob):
            take(text)

    short, long = make(short), make(long)
    assert_within(factor, lambda: work(long), lambda: work(short), SLACK)


def nested(length):
    schema = {"type": "string"}
    for _ in range(length // 10):
        schema = {"items": schema}
    return schema


def defined(length):
    """Definitions with names of one spelling that references spell in many ways."""
    names = [
        "".join("~0" if i >> bit & 1 else "~" for bit in range(9)) for i in range(length // 80)
    ]
    values = [{"const": i} for i in range(length // 20)]
    return {
        "$defs": {"~" * 9: {"anyOf": values}},
        "properties": {f"p{i}": {"$ref": f"#/$defs/{name}"} for i, name in enumerate(names)},
    }


def patterns(join, length):
    return {join: [{"type": "string", "pattern": f"a.{{{i}}}$"} for i in range(length // 40)]}


SCHEMAS = {
    "arrays in each other": nested,
    "definitions": defined,
    "names of properties": lambda n: {"properties": {f"p{i}": {} for i in range(n // 12)}},
    "a long name above many": lambda n: {
        "properties": {"x" * (n // 2): {"properties": {f"p{i}": {} for i in range(n // 24)}}}
    },
    "patterns of names": lambda n: {
        "type": "object",
        "patternProperties": {f"^p{i}x": {} for i in range(n // 16)},
    },
    "alternatives": lambda n: {"anyOf": [{"const": i} for i in range(n // 18)]},
    "patterns, one of which": lambda n: patterns("anyOf", n),
    "patterns, one alone": lambda n: patterns("oneOf", n),
    "patterns together": lambda n: patterns("allOf", n),
    "objects to choose from": lambda n: {"enum": [{"a": i, "b": [i]} for i in range(n // 24)]},
    "a large object": lambda n: {"const": {f"p{i}": i for i in range(n // 12)}},
    "a deep array": lambda n: {
        "const": json.loads("[" * 100 + ",".join("0" * (n // 2)) + "]" * 100)
    },
    "numbers to divide by": lambda n: {"anyOf": [{"multipleOf": 9973 - i} for i in range(n // 20)]},
    "a number to divide by": lambda n: {"type": "integer", "multipleOf": n * n + 1},
    "a pattern": lambda n: {"pattern": "^" + "[a-z]?" * (n // 6) + "$"},
}

PATTERNS = {
    "what may be left out": lambda n: "a?" * (n // 2),
    "letters that may be": lambda n: r"\pL*" * (n // 4),
    "empty alternatives": lambda n: "(a|)" * (n // 4),
    "letters": lambda n: r"\pL" * (n // 3),
    "alternatives": lambda n: "|".join(f"a{i}" for i in range(n // 6)),
    "classes": lambda n: "[ab" * (n // 3),
    "groups": lambda n: "(" * n,
    "backslashes": lambda n: "\\" * n,
}

TERMINALS = {
    "what holds together": lambda n: "&".join(f"/(?s:.*)a.{{{i}}}/" for i in range(n // 20)),
    "what may be left out": lambda n: r"/\pL*/ " * (n // 8),
    "terminals that may be": lambda n: "B? " * (n // 3),
    "alternatives": lambda n: " | ".join(f'"{i:05}"' for i in range(n // 10)),
}


FORMS = {
    "schema": (constraints.json_schema, SCHEMAS),
    "pattern": (constraints.regex, PATTERNS),
    "terminal": (lambda text: constraints.grammar(f"start: A\nA: {text}\nB: /[a-z]/"), TERMINALS),
}


@pytest.mark.parametrize(("kind", "name"), [(k, name) for k in FORMS for name in FORMS[k][1]])
def test_a_constraint_twice_as_long_takes_twice_as_long_to_compile(grammars, kind, name):
    constrain, makers = FORMS[kind]
    assert_linear(lambda form: grammars._compile(constrain(form).grammar), makers[name])


SPACED = ["~ 3..5", "%json {}", '%regex {"substring_chars": "abc"}', "%llguidance {}", "%lark {"]
WORDS = {  # and what has spaces
    "grammar": (
        'start a B : | ( ) [ ] * + ? & ~ "x" " /x/ /[a-z]*/ / \\ # // %json { } {2} , -> @a <a>'
        " root ::= [^a] {1,3} {,} %if a::_ b[lazy] é %ignore",
        [*SPACED, "\n", "\x00"],
    ),
    "regex": (
        r"a [a-z] \pL \w \W . ( ) (?: (?i) (?= | * + ? {3} {0,9} {1000} { } [ ] ^ $ \ \b"
        r" \1 && ~ é (a|) (a|b)* (.*a.{9}) - /",
        ["\n", "\x00"],
    ),
}
NAMES = ["a", "b", "^a", "^b.*", "$defs", "~1/~0", "\n", "é", "", "x-a"]
REFERENCES = ["#", "#/$defs/a", "#/$defs/b", "#/properties/a", "a", "#/$defs/~01", "http://a/b"]


def texts(kind):
    """Texts of words that mean something there, in any order and, some of them, many times over."""
    words, more = WORDS[kind]
    word = st.sampled_from([*words.split(), *more])
    times = st.sampled_from([1, 1, 1, 2, 30, 1000])
    parts = st.lists(st.tuples(word, times).map(lambda pair: pair[0] * pair[1]), max_size=12)
    begin = st.sampled_from(["start: ", "root ::= ", ""] if kind == "grammar" else [""])
    joined = st.tuples(begin, st.sampled_from(["", " "]), parts)
    return joined.map(lambda made: made[0] + made[1].join(made[2]))


def schemas():
    """Schemas of any keywords, most with values of the right kind."""
    schema = st.deferred(lambda: inner)
    names = st.sampled_from(NAMES)
    number = st.sampled_from([0, 1, -1, 3, 7.5, 0.001, 9973, 10**6 + 3, 2**53, 10**30, 1e300])
    value = st.recursive(
        st.one_of(number, st.none(), st.booleans(), names),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=3),
        max_leaves=10,
    )
    pattern = texts("regex")
    several = st.lists(schema, min_size=1, max_size=4) | schema.map(lambda one: [one] * 100)
    kinds = {
        "type": st.sampled_from(["string", "object", "array", "integer", "number", ["null", "a"]]),
        "properties patternProperties $defs": st.dictionaries(names, schema, max_size=3),
        "items additionalProperties": schema,
        "anyOf allOf oneOf prefixItems": several,
        "enum required": st.lists(value, max_size=4),
        "const": value,
        "minimum maximum exclusiveMinimum multipleOf minItems maxItems minLength maxLength": number,
        "pattern": pattern,
        "format": st.sampled_from(["date", "email", "uuid", "a"]),
        "$ref": st.sampled_from(REFERENCES),
        "not if default x-a nullable": value,
    }
    members = st.one_of(
        st.tuples(st.sampled_from(keywords.split()), usual | usual | usual | value)
        for keywords, usual in kinds.items()
    )
    inner = st.lists(members, max_size=4).map(dict) | st.booleans() | value
    return st.lists(members, max_size=5).map(dict)


DRAWN = {
    "grammar": (texts("grammar"), constraints.grammar),
    "regex": (texts("regex"), constraints.regex),
    "schema": (schemas(), constraints.json_schema),
}


@pytest.mark.parametrize("kind", DRAWN)
def test_whatever_comes_is_compiled_or_refused_in_time(grammars, kind, request):
    strategy, make = DRAWN[kind]

    tried = request.config.getoption("--schemas")

    @settings(max_examples=tried, database=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def check(form):
        begin = time.thread_time()
        try:
            matcher = grammars._compile(make(form).grammar)
        except engine.InvalidJob as error:
            assert len(str(error)) < 1500
        else:
            matcher.compute_bitmask()
        assert time.thread_time() - begin < 4  # about one, on a fast machine

    check()


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_grammar_twice_as_long_takes_twice_as_long(grammars, name):
    assert_linear(constraints.grammar, GRAMMARS[name])


def test_the_text_of_a_schema_is_looked_at_no_further_than_it_may_be_long():
    def take(text):
        with contextlib.suppress(BadRequest):
            validate(Constrained, {"guided_json": text})

    def make(length):
        return "{" + ",".join(f'"{i:05}":0' for i in range(length)) + "}"

    assert_linear(take, make, long=10 * LENGTH, factor=1)


def test_strings_that_are_banned_are_looked_up_in_any_vocabulary_at_once():
    draw = random.Random(1)
    pieces = [bytes(draw.choices(b"abcdefgh \n", k=draw.randint(1, 12))) for _ in range(200_000)]
    vocabulary = Vocabulary(pieces)
    strings = ["".join(draw.choices("abcdefgh ", k=200)) for _ in range(64)]

    def look_at_each(strings):
        few = [string.encode() for string in strings[:4]]
        return [piece for string in few for piece in pieces if string in piece]

    def look_up(strings):
        vocabulary.containing.cache_clear()
        return [vocabulary._ban(string) for string in strings]

    # One after the other they would take 16 times as long. Other caches, other times: 3 to 7.
    assert_within(10, lambda: look_up(strings), lambda: look_at_each(strings))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("start: /a\n/ <[4]> /b\n/", "special"),
        ('start: /[%json {"title": "]/ <[4]> /["}]/', "special"),
        ('start: "a" # "\na: <[4]> # "', "special"),
        ('start: /"/ <[4]> /"/', "special"),
        ('start: a\na[stop = "x"]: /"/', "stop"),
        ('start: "a', "string on line 1"),
        ("start: x\nx: /a\\", "regular expression on line 2"),
        ("start: %json {", "not valid JSON"),
        ('start: %json {"title": "<"} <[4]>', "special"),
    ],
)
def test_a_grammar_is_read_as_its_compiler_reads_it(text, word):
    with pytest.raises(engine.InvalidJob, match=word):
        constraints.grammar(text)


@pytest.mark.parametrize(
    "text",
    [
        'start: "<" /</ /a\n</ "/" "#" // <\n# <',
        'start: %json {"title": "/ <[4]> \\" #"}',
        'root ::= "#" [#"] x # "\nx ::= "a" # [',
        "root ::= a b\na ::= b\nb ::= c | d\nc ::= [x]\nd ::= a?",
    ],
)
def test_what_only_looks_odd_is_taken(grammars, text):
    grammars.matcher(constraints.grammar(text).grammar)
