"""JSON that encloses other JSON, such as a call with its arguments, as parts of a rule. Does no
I/O.
"""

import re

from switchyard.engine.grammar.spelling import WHITESPACE, literal

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')
_NAMES = {"{": "OPEN", "}": "CLOSE", "[": "BEGIN", "]": "END", ":": "COLON", ",": "COMMA"}

# The same as for other JSON: until the two differ, the lexer doesn't know which of them it reads.
TERMINALS = [
    r"OPEN: /\{ ?/",  # parsers of calls look for the first key here
    rf"BEGIN: /\[{WHITESPACE}/",
    rf"CLOSE: /{WHITESPACE}\}}/",
    rf"END: /{WHITESPACE}\]/",
    rf"COLON: /{WHITESPACE}:{WHITESPACE}/",
    rf"COMMA: /{WHITESPACE},{WHITESPACE}/",
]


def tokens(text: str) -> list[str]:
    """The tokens of a piece of JSON, with the customary white space between them."""
    return [_NAMES.get(token) or literal(token) for token in _TOKEN.findall(text)]
