"""llama.cpp's grammars, by its own rules."""

import hypothesis
import pytest
from hypothesis import strategies as st

from switchyard import engine
from switchyard.engine.grammar import constraints

CHARACTERS = 'ab"\\[]\n\tяé😀-^'
ESCAPED = {'"': '\\"', "\\": "\\\\", "[": "\\[", "]": "\\]", "\n": "\\n", "\t": "\\t"}


def ends(node, text, at):
    """Where a text that the node admits may end, if it begins at `at`."""
    kind, value = node
    if kind == "literal":
        return {at + len(value)} if text.startswith(value, at) else set()
    if kind == "class":
        is_negated, ranges = value
        is_in = at < len(text) and any(a <= text[at] <= b for a, b in ranges)
        return {at + 1} if at < len(text) and is_in != is_negated else set()
    if kind == "either":
        return set().union(*(ends(one, text, at) for one in value))
    if kind == "all":
        found = {at}
        for one in value:
            found = set().union(*(ends(one, text, i) for i in found))
        return found
    one, least, most = value
    found = {at} if least == 0 else set()
    now = {at}
    for i in range(1, min(most, len(text) + least) + 1):
        now = set().union(*(ends(one, text, j) for j in now))
        found |= now if i >= least else set()
    return found


def write(node, draw):
    kind, value = node
    if kind == "literal":
        return f'"{"".join(spell(c, draw) for c in value)}"'
    if kind == "class":
        is_negated, ranges = value
        inner = "".join(f"{spell(a, draw, True)}-{spell(b, draw, True)}" for a, b in ranges)
        return f"[{'^' if is_negated else ''}{inner}]"
    if kind == "either":
        lines = " |\n".join(write(one, draw) for one in value)
        return f"({lines}) # or\n"
    if kind == "all":
        return f"({'  '.join(write(one, draw) for one in value)})"
    one, least, most = value
    count = f"{{{least}}}" if least == most else f"{{{least},{most}}}"
    return f"({write(one, draw)}){count}"


def spell(character, draw, is_class=False):
    point = ord(character)
    forms = [f"\\U{point:08x}", ESCAPED.get(character, character)]
    forms += [f"\\u{point:04X}"] * (point < 0x10000) + [f"\\x{point:02x}"] * (point < 0x100)
    if is_class and character in "^-":
        forms.remove(character)
    return draw(st.sampled_from(forms))


_CHARACTER = st.sampled_from(CHARACTERS)
_RANGES = st.lists(st.tuples(_CHARACTER, _CHARACTER).map(sorted), min_size=1, max_size=2)
_NODES = st.recursive(
    st.tuples(st.just("literal"), st.text(_CHARACTER, max_size=3))
    | st.tuples(st.just("class"), st.tuples(st.booleans(), _RANGES)),
    lambda inner: st.one_of(
        st.tuples(st.just("either"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("all"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(inner, st.integers(0, 2), st.integers(0, 2)).map(
            lambda t: ("times", (t[0], t[1], t[1] + t[2]))
        ),
    ),
    max_leaves=6,
)


def admits(grammars, grammar, text):
    try:
        matcher = grammars.matcher(constraints.grammar(grammar).grammar)
    except engine.InvalidJob as error:
        assert "no text is allowed" in str(error), (grammar, error)
        return False
    tokens = grammars.tokenizer.tokenize_str(text)
    return all(map(matcher.consume_token, tokens)) and matcher.is_accepting()


@hypothesis.settings(max_examples=100, derandomize=True, deadline=None)
@hypothesis.given(_NODES, st.text(_CHARACTER, max_size=5), st.data())
def test_a_random_grammar_admits_what_it_says(grammars, node, text, data):
    parts = node[1] if node[0] == "all" else [node]
    # Each part as a rule of its own, called as rules of Lark are, too.
    rules = [
        f"{'start' if i == 0 else f'r-{i}'} ::= {write(p, data.draw)}" for i, p in enumerate(parts)
    ]
    names = " ".join("start" if i == 0 else f"r-{i}" for i in range(len(parts)))
    grammar = "\n".join([f"root ::= {names}", *rules])
    assert admits(grammars, grammar, text) == (len(text) in ends(node, text, 0)), grammar


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
        ('| root ::= "a"', "line 1, column 1: a rule's name must be here"),
        ('root ::= "a"{,3}', "line 1, column 13"),
        ('root ::= "a"{3,2}', "line 1, column 13"),
        ('root ::= "a" b\n', "line 1, column 14: there is no rule called b"),
        ('root ::= ("a"', "line 1, column 10: the group has no end"),
        ('root ::= "a', "line 1, column 10: the string has no end"),
        ("root ::= [a", "line 1, column 10: the class has no end"),
        ("root ::= [b-a]", "line 1, column 14"),
        ('root ::= "\\ud800"', "line 1, column 11"),
        ('a ::= "a"', "no rule called root"),
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
