"""llama.cpp's grammars, by its own rules."""

import hypothesis
import pytest
from hypothesis import strategies as st

from switchyard import engine
from switchyard.engine.grammar import constraints
from tests.engine.constraints.random_gbnf import CHARACTER, NODES, ends, grammar_of


def admits(grammars, grammar, text):
    try:
        matcher = grammars.matcher(constraints.grammar(grammar).grammar)
    except engine.InvalidJob as error:
        assert "it allows no text" in str(error), (grammar, error)
        return False
    tokens = grammars.tokenizer.tokenize_str(text)
    return all(map(matcher.consume_token, tokens)) and matcher.is_accepting()


@hypothesis.settings(max_examples=40, derandomize=True, deadline=None)
@hypothesis.given(NODES, st.text(CHARACTER, max_size=5), st.data())
def test_a_random_grammar_admits_what_it_says(layout, node, text, data):
    grammar = grammar_of(node, data.draw)
    assert admits(layout, grammar, text) == (len(text) in ends(node, text, 0)), grammar


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ('root ::= "\\u00e9ab"', "éab"),
        ("root ::= [\\u0430-\\u044f]+", "привет"),
        ('root ::= "\\u0041b" "\\U0001F600" "\\x41"', "Ab😀A"),
        ('start ::= "a"\nroot ::= start', "a"),
        ('root ::= "x" "a"{0} "b"{0,0} "y"', "xy"),
        ('root ::= # "c"\n  "a" | # [d\n "b" # e\n', "b"),
        ('root ::= ("a"\n|"b"){2,3}\n', "abb"),
        ('root ::= "(" root ")" | "x"*', "((xx))"),
        ('ws ::= | " " | "\\n" [ \\t]{0,20}\nroot ::= ws "a"', "\n a"),
        ("root ::= [a-]+ .", "a-я"),
    ],
)
def test_what_a_grammar_admits(grammars, grammar, text):
    assert admits(grammars, grammar, text)
    assert not admits(grammars, grammar, f"{text}§§")


@pytest.mark.parametrize(
    ("grammar", "place"),
    [
        ('root ::= "a"\nb ::= "\\-"', "line 2, column 8"),
        ('| root ::= "a"', "line 1, column 1: a rule's name is missing here"),
        ('root ::= "a"{,3}', "line 1, column 13"),
        ('root ::= "a"{3,2}', "line 1, column 13"),
        ('root ::= "a" b\n', "line 1, column 14: there is no rule named b"),
        ('root ::= ("a"', "line 1, column 10: the group has no end"),
        ('root ::= "a', "line 1, column 10: the string has no end"),
        ("root ::= [a", "line 1, column 10: the class has no end"),
        ("root ::= [b-a]", "line 1, column 14"),
        ('root ::= "\\ud800"', "line 1, column 11"),
        ('a ::= "a"', "no rule named root"),
        ('root := "a"', "line 1, column 6"),
        ('root ::= "a" )', "line 1, column 14"),
        ("root ::= " + "(" * 20_000, "nested too deeply"),
    ],
)
def test_what_is_no_grammar_is_refused_with_its_place(grammar, place):
    with pytest.raises(engine.InvalidJob, match=place):
        constraints.grammar(grammar)


@pytest.mark.parametrize(
    "text", ['?start: "a"', '!start: "a"', "start[lazy]: /a/", 'start.2: "a"', 'start: "a"']
)
def test_larks_first_rule_may_have_marks(text):
    assert f'"{text[:5]}' in constraints.grammar(text).grammar
