"""JSON in random spellings, for hypothesis: each is the same value to any reader."""

import json

from hypothesis import strategies as st

SHORT = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n"} | {
    "\r": "\\r",
    "\t": "\\t",
}
SPACES = ("", "", "", " ", "\n", "\n  ", "\n\t", "\n" + 20 * " ")


@st.composite
def spelled(draw, value, is_free=True):
    """A text of `value`: its properties in any order, white space, and, where the spelling
    `is_free`, any spelling of each character.
    """
    space = draw(st.randoms(use_true_random=False))

    def text_of(text, is_free):
        plain = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
        if not is_free or space.random() < 0.5:
            return plain
        return f'"{"".join(map(character, text))}"'

    def character(one):
        units = one.encode("utf-16-be").hex()
        long = "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))
        forms = [long, "\\u" + long[2:].upper().replace("\\U", "\\u"), SHORT.get(one, long)]
        if one not in '"\\' and one >= " ":
            forms += [one] * 4
        return space.choice(forms)

    def gap():
        return space.choice(SPACES)

    def write(value):
        match value:
            case dict() if value:
                items = list(value.items())
                space.shuffle(items)
                parts = [f"{text_of(n, is_free)}{gap()}:{gap()}{write(v)}" for n, v in items]
                return "{" + gap() + f"{gap()},{gap()}".join(parts) + gap() + "}"
            case list() if value:
                parts = [write(item) for item in value]
                return "[" + gap() + f"{gap()},{gap()}".join(parts) + gap() + "]"
            case str():
                return text_of(value, is_free)
        return json.dumps(value)

    return write(value)
