"""Random grammars in GBNF, for hypothesis: as trees, as texts, and what they admit."""

import hypothesis
from hypothesis import strategies as st

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


CHARACTER = st.sampled_from(CHARACTERS)
_RANGES = st.lists(st.tuples(CHARACTER, CHARACTER).map(sorted), min_size=1, max_size=2)
NODES = st.recursive(
    st.tuples(st.just("literal"), st.text(CHARACTER, max_size=3))
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


def grammar_of(node, draw):
    """Each part as its own rule, called as rules of Lark are, too."""
    parts = node[1] if node[0] == "all" else [node]
    names = ["start", *(f"r-{i}" for i in range(1, len(parts)))]
    rules = [f"{name} ::= {write(part, draw)}" for name, part in zip(names, parts, strict=True)]
    return "\n".join([f"root ::= {' '.join(names)}", *rules])


def sample(node, draw):
    """A text that the node admits."""
    kind, value = node
    if kind == "literal":
        return value
    if kind == "class":
        found = [c for c in CHARACTERS if ends(node, c, 0)]
        hypothesis.assume(found)
        return draw(st.sampled_from(found))
    if kind == "either":
        return sample(draw(st.sampled_from(value)), draw)
    if kind == "all":
        return "".join(sample(one, draw) for one in value)
    one, least, most = value
    return "".join(sample(one, draw) for _ in range(draw(st.integers(least, most))))
