"""Distinguishes Lark from GBNF, and refuses parts of Lark.

Each pass takes linear time, because patterns are possessive, and because the pattern for a part
that has an end mark also matches the part without this mark.
"""

import json
import re
from typing import Any

from switchyard.engine.errors import InvalidJob
from switchyard.engine.grammar.limits import MAX_CONJUNCTIONS, seconds_of_regex

# Rules and open brackets: the compiler's recursion must fit its stack.
MAX_NESTING = 1500

# The tokens of llguidance's lexer that mean more than their characters. Regular expressions, unlike
# strings, may have line breaks in them.
_TEXT = re.compile(
    r"""
      "(?:[^"\\\n]++|\\.)*+(?P<string>"i?)?             # a string
    | /(?!/)(?:[^/\\]++|\\.)*+(?P<regex>/[imslux]*+)?   # a regular expression
    | (?P<comment>//|\#)[^\n]*+
    | (?P<json>%json)[ \t\r\n]*+
    """,
    re.VERBOSE,
)
_ATTRIBUTE = re.compile(r"\b(temperature|max_tokens|stop|stop_capture)\s*+=")
_IS_LARK = re.compile(
    r"(?m)^[^\S\n]*+(?:%llguidance\b|[?!]?start(?:\[[^]\n]*\]|\.\d++)?\s*+:(?!:=))"
)


def is_lark(text: str) -> bool:
    """Whether the text has Lark's first rule or llguidance's options. Other texts are GBNF."""
    return _IS_LARK.search(text) is not None


def check_lark(text: str) -> tuple[str, dict[str, Any], float]:
    """Returns the grammar with each schema replaced by a name, the schemas by these names, and the
    estimated seconds to compile the grammar without the schemas. Raises InvalidJob for parts of
    Lark that llguidance accepts but this server does not.
    """
    code, patterns, schemas = _parts(text)
    plain = " ".join(one for one, is_code in code if is_code)
    if "<" in plain:
        raise InvalidJob("a grammar can't contain special tokens (<)", "constraint")
    if "@" in plain:
        raise InvalidJob("a grammar can't refer to other grammars (@)", "constraint")
    if attribute := _ATTRIBUTE.search(plain):
        raise InvalidJob(f"{attribute[1]} is not supported in a grammar", "constraint")
    if sum(plain.count(c) for c in "([{:") > MAX_NESTING:
        raise InvalidJob(
            f"the grammar has more than {MAX_NESTING} rules and brackets", "constraint"
        )
    if plain.count("&") > MAX_CONJUNCTIONS:
        raise InvalidJob(f"the grammar has more than {MAX_CONJUNCTIONS} & operators", "constraint")
    whole = "".join(one for one, _ in code)
    return whole, schemas, seconds_of_regex(plain, *patterns)


def _parts(text: str) -> tuple[list[tuple[str, bool]], list[str], dict[str, Any]]:
    """Returns the pieces of `text`, with its schemas replaced by names; its regular expressions;
    and its schemas. Each piece comes with a flag that is true for code, as opposed to a string,
    regular expression, comment or schema. Raises InvalidJob.
    """
    code: list[tuple[str, bool]] = []
    patterns: list[str] = []
    schemas: dict[str, Any] = {}
    start = 0
    while match := _TEXT.search(text, start):
        code.append((text[start : match.start()], True))
        start = match.end()
        piece = match[0]
        if match["json"]:
            try:
                schema, start = json.JSONDecoder().raw_decode(text, start)
            except (ValueError, RecursionError):
                raise InvalidJob("the text after %json is not valid JSON", "constraint") from None
            piece = f"@schema_{len(schemas)}"
            schemas[piece[1:]] = schema
        elif match["regex"]:
            patterns.append(piece)
        elif match.lastgroup is None:
            line = text.count("\n", 0, match.start()) + 1
            what = "string" if piece[0] == '"' else "regular expression"
            raise InvalidJob(f"the {what} on line {line} has no end", "constraint")
        code.append((piece, False))
    return [*code, (text[start:], True)], patterns, schemas
