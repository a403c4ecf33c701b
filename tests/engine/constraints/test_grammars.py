"""Grammars: what is too much, and how long a compiled one is kept."""

import itertools
import threading
import time
from types import SimpleNamespace

import pytest

from switchyard import engine
from switchyard.engine.grammar import constraints
from switchyard.engine.grammar.grammars import Grammars
from tests.engine.forced import run
from tests.scripted import job

MODULE = "switchyard.engine.grammar.grammars"
MAX_CHAIN = 250  # definitions, each of which has the next as a property, beside the last


def chain(number):
    definitions = {
        f"a{i}": {
            "type": "object",
            "properties": {"a": {"$ref": f"#/$defs/a{i + 1}"}},
            "additionalProperties": False,
        }
        for i in range(number)
    }
    return {"$ref": "#/$defs/a0", "$defs": {**definitions, f"a{number}": {"type": "string"}}}


def deep(number):
    schema = {"type": "string"}
    for _ in range(number):
        schema = {"items": schema}
    return schema


HOSTILE = {
    constraints.json_schema: {
        "references": chain(10_000),
        "depth": deep(20_000),
        "some depth": deep(500),
        "choices": {
            "allOf": [
                {"anyOf": [{"properties": {f"p{i}": {"const": j}}} for j in range(8)]}
                for i in range(12)
            ]
        },
        "properties": {"type": "object", "properties": {f"p{i}": {} for i in range(20_000)}},
        "patterns of one value": {"allOf": [{"pattern": f"a.{{{i}}}$"} for i in range(40)]},
        "patterns of one property": {
            "allOf": [{"properties": {"a": {"pattern": f"a.{{{i}}}$"}}} for i in range(40)]
        },
        "patterns of one definition": {
            "$defs": {
                f"a{i}": {"pattern": f"a.{{{i}}}$", "$ref": f"#/$defs/a{i + 1}"} for i in range(40)
            }
            | {"a40": {"type": "string"}},
            "$ref": "#/$defs/a0",
        },
        "patterns of names": {
            "type": "object",
            "patternProperties": {f"^k{i}x": {} for i in range(1000)},
        },
        "required names": {"type": "object", "required": [f"k{i}" for i in range(2100)]},
        "a multiple": {"type": "integer", "multipleOf": 1_000_003},
        "multiples": {"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]},
        "many objects": {"enum": [{"a": [i], "b": {"c": i}} for i in range(4000)]},
    },
    constraints.regex: {
        "repetitions": "(a{2000}){2000}",
        "one repetition": "a{100000000}",
        "nested groups": "(" * 20_000 + "a" + ")" * 20_000,
        "letters that may be": r"\pL*" * 8000,
    },
    constraints.grammar: {
        "rules": "\n".join(
            ["start: r0", *(f"r{i}: r{i + 1}" for i in range(20_000)), 'r20000: "a"']
        ),
        "terminals": "\n".join(
            ["start: A0", *(f"A{i}: A{i + 1} A{i + 1}" for i in range(40)), 'A40: "a"']
        ),
        "brackets": "start: " + "(" * 20_000 + '"a"' + ")" * 20_000,
        "conjunctions": "start: A\nA: " + " & ".join(f"/({'a' * i})*/" for i in range(1, 40)),
        "a deep schema": 'start: %json {"const": ' + "[" * 900 + "]" * 900 + "}",
        "groups of GBNF": "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000,
    },
}


@pytest.mark.parametrize(
    ("make", "name"), [(make, name) for make, named in HOSTILE.items() for name in named]
)
def test_a_hostile_grammar_is_refused_in_time(grammars, make, name):
    begin = time.thread_time()
    with pytest.raises(engine.InvalidJob):
        grammars.matcher(make(HOSTILE[make][name]).grammar)
    assert time.thread_time() - begin < 5  # of this thread, whatever runs beside it


@pytest.mark.parametrize("make", [lambda: chain(MAX_CHAIN), lambda: deep(60)])
def test_what_is_large_but_allowed_fits_the_stack(grammars, make):
    done = []

    def compile_it():
        done.append(grammars.matcher(constraints.json_schema(make()).grammar))

    thread = threading.Thread(target=compile_it)  # with a thread's stack, not the main one's
    thread.start()
    thread.join()
    assert done


def test_one_definition_more_than_fits_the_stack_is_refused():
    constraints.json_schema(chain(MAX_CHAIN))
    with pytest.raises(engine.InvalidJob, match="nested too deeply, including the schemas that it"):
        constraints.json_schema(chain(MAX_CHAIN + 1))


def test_a_schema_may_be_so_deep_and_no_deeper():
    constraints.json_schema(deep(126))
    with pytest.raises(engine.InvalidJob, match="nested too deeply"):
        constraints.json_schema(deep(127))


@pytest.mark.parametrize("keyword", ["prefixItems", "items"])
def test_an_array_may_hold_its_own_kind_if_it_may_be_empty(grammars, keyword):
    inner = {"$ref": "#"}
    schema = {"type": "array", keyword: [inner] if keyword == "prefixItems" else inner}
    assert grammars.matcher(constraints.json_schema(schema).grammar)
    with pytest.raises(engine.InvalidJob, match="no finite value can match it"):
        constraints.json_schema(schema | {"minItems": 1})


@pytest.mark.parametrize("make", [constraints.json_schema, None])
@pytest.mark.parametrize("text", ["5", "[", '"'])
def test_a_schema_that_is_true_allows_any_json(grammars, make, text):
    constraint = make(True) if make else constraints.grammar("start: %json true")
    matcher = grammars.matcher(constraint.grammar)
    assert matcher.consume_token(grammars.tokenizer.tokenize_str(text)[0])


@pytest.mark.parametrize("text", ["\x01\t\n\r", "a\x7fb", "\x85\u2028", '\\"/', "日本 😀"])
def test_a_choice_may_have_any_character(grammars, text):
    matcher = grammars.matcher(constraints.choice([text]).grammar)
    tokens = grammars.tokenizer.tokenize_str(text)
    assert matcher.validate_tokens(tokens) == len(tokens)


def test_a_grammar_is_compiled_once(grammars, monkeypatch):
    constraint = constraints.regex("compiled once [0-9]+")
    compiled = []
    compile_it = grammars._compile
    monkeypatch.setattr(grammars, "_compile", lambda g: compiled.append(g) or compile_it(g))
    [first] = grammars.tokenizer.tokenize_str("c")
    for _ in range(3):  # made, found, found: each at the beginning
        assert grammars.matcher(constraint.grammar).consume_token(first)
    assert len(compiled) == 1


def test_the_grammar_that_was_not_used_for_longest_is_dropped_first(grammars, monkeypatch):
    monkeypatch.setattr(f"{MODULE}.BYTES_PER_SECOND", 0)
    grammars.matcher(constraints.regex("before").grammar)
    monkeypatch.setattr(f"{MODULE}.MAX_BYTES", 300 * 1024)  # of two
    for pattern in ("a", "b", "a", "c"):
        grammars.matcher(constraints.regex(pattern).grammar)
    kept = list(grammars._compiled)
    assert kept == [constraints.regex(pattern).grammar for pattern in ("a", "c")]


def test_compiled_grammars_are_kept_by_their_size(tokenizer, monkeypatch):
    monkeypatch.setattr(f"{MODULE}.KEPT_BYTES", 1 << 40)
    monkeypatch.setattr(f"{MODULE}.QUIET", 60)
    grammars = Grammars(tokenizer)
    small = [constraints.regex(f"small {i}").grammar for i in range(100)]
    for grammar in small:
        grammars.matcher(grammar)
    assert set(small) <= grammars._compiled.keys()
    monkeypatch.setattr(f"{MODULE}.MAX_BYTES", 80 * 1024**2)
    seconds = itertools.count(0, 0.05)  # 26 MB each
    clock = SimpleNamespace(monotonic=time.monotonic, thread_time=lambda: next(seconds))
    monkeypatch.setattr(f"{MODULE}.time", clock)
    large = [constraints.regex(f"large {i}").grammar for i in range(6)]
    for grammar in large:
        grammars.matcher(grammar)
    assert list(grammars._compiled) == large[-3:]
    assert grammars._size == sum(one.size for one in grammars._compiled.values()) <= 80 * 1024**2


@pytest.fixture
def alarms(monkeypatch):
    """The calls that alarms of grammars would make."""
    found = []
    alarm = SimpleNamespace(set=lambda seconds, call: found.append(call))
    monkeypatch.setattr(f"{MODULE}.ALARMS", alarm)
    return found


def test_grammars_beyond_some_go_once_they_are_not_used_any_more(tokenizer, alarms, monkeypatch):
    monkeypatch.setattr(f"{MODULE}.BYTES_PER_SECOND", 0)
    monkeypatch.setattr(f"{MODULE}.KEPT_BYTES", 300 * 1024)  # two
    monkeypatch.setattr(f"{MODULE}.QUIET", 3600.0)
    grammars = Grammars(tokenizer)
    names = [constraints.regex(pattern).grammar for pattern in "abcd"]
    for name in names:
        grammars.matcher(name)
    assert len(alarms) == 1
    alarms.pop()()
    assert list(grammars._compiled) == names  # in use
    assert len(alarms) == 1  # another look
    monkeypatch.setattr(f"{MODULE}.QUIET", 0.0)
    alarms.pop()()
    assert list(grammars._compiled) == names[2:]
    assert alarms == []


def test_a_grammar_that_is_asked_for_again_stays_compiled(tokenizer, alarms, monkeypatch):
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], thread_time=time.thread_time)
    monkeypatch.setattr(f"{MODULE}.time", clock)
    monkeypatch.setattr(f"{MODULE}.KEPT_BYTES", 0)
    monkeypatch.setattr(f"{MODULE}.QUIET", 5.0)
    grammars = Grammars(tokenizer)
    name = constraints.regex("again").grammar
    kept = []
    for now[0], asks in ((0, True), (4, True), (6, False), (9, False)):
        if asks:
            grammars.matcher(name)
        elif alarms:
            alarms.pop()()
        kept.append(name in grammars._compiled)
    assert kept == [True, True, True, False]


def test_each_second_of_a_grammars_use_is_noted_once(backend, monkeypatch):
    ticks, noted = itertools.count(), []  # of 0.4 ms, each a mask
    clock = SimpleNamespace(thread_time=lambda: next(ticks) * 4e-4, monotonic=time.monotonic)
    monkeypatch.setattr("switchyard.engine.backends.sampling.matcher.time", clock)
    monkeypatch.setattr(backend._grammars, "note_use", lambda _, used: noted.append(used))
    run(backend, job("a", 5, prompt=(1,), constraint=constraints.regex("[a-z]{40}")))
    assert noted and {round(used, 6) for used in noted} == {0.0012}  # as it exceeds 1 ms


def test_a_compiled_grammar_counts_more_as_it_is_used(tokenizer, backend, monkeypatch):
    monkeypatch.setattr("switchyard.engine.backends.sampling.matcher.NOTE_AFTER", 0)
    monkeypatch.setattr(f"{MODULE}.KEPT_BYTES", 1 << 40)
    constraint = constraints.regex("([a-z]{0,300}|[a-y]{0,301}|[b-z]{0,302})*")
    run(backend, job("a", 1, prompt=(1,), constraint=constraint))
    kept = backend._grammars._compiled[constraint.grammar]
    before = kept.size
    run(backend, job("a", 60, prompt=(1,), constraint=constraint))
    assert kept.size > before
    backend._grammars.note_use(constraint.grammar, 3600)
    assert kept.size == kept.max_size
    backend._grammars.note_use("none that is kept", 3600)
    sizes = [one.size for one in backend._grammars._compiled.values()]
    assert backend._grammars._size == sum(sizes)
