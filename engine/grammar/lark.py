"""Tells Lark from GBNF, and refuses parts of Lark.

Each pass takes linear time: patterns are possessive, and a pattern for a part with an end also
matches the part without its end.
"""

import json
import re

from switchyard.engine.errors import InvalidJob
from switchyard.engine.grammar.json_schema import check_schema
from switchyard.engine.grammar.limits import MAX_CONJUNCTIONS, check_seconds, seconds_of_regex

# Rules and open brackets: the compiler's recursion must fit its stack.
MAX_NESTING = 1500

# The tokens of llguidance's lexer that are more than their characters. Regular expressions, unlike
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
    """Whether the text has Lark's first rule, or llguidance's options; else it is GBNF."""
    return _IS_LARK.search(text) is not None


def check_lark(text: str) -> None:
    """Raises InvalidJob for parts of Lark that llguidance takes and that are not honoured here."""
    code, patterns, seconds = _parts(text)
    if "<" in code:
        raise InvalidJob("special tokens can't be in a grammar", "constraint")
    if attribute := _ATTRIBUTE.search(code):
        raise InvalidJob(f"{attribute[1]} is not supported in a grammar", "constraint")
    if sum(code.count(c) for c in "([{:") > MAX_NESTING:
        raise InvalidJob(f"it has more than {MAX_NESTING} rules and brackets", "constraint")
    if code.count("&") > MAX_CONJUNCTIONS:
        raise InvalidJob(f"it has more than {MAX_CONJUNCTIONS} &", "constraint")
    check_seconds(seconds + seconds_of_regex(code, *patterns))


def _parts(text: str) -> tuple[str, list[str], float]:
    """Returns `text` without strings, regular expressions, comments and schemas; the regular
    expressions; and the estimated seconds of compilation of the schemas. Raises InvalidJob.
    """
    code, patterns, seconds, start = [], [], 0.0, 0
    while match := _TEXT.search(text, start):
        code.append(text[start : match.start()])
        start = match.end()
        if match["json"]:
            try:
                schema, start = json.JSONDecoder().raw_decode(text, start)
            except (ValueError, RecursionError):
                raise InvalidJob("what follows a %json is no JSON", "constraint") from None
            seconds += check_schema(schema)
        elif match["regex"]:
            patterns.append(match[0])
        elif match.lastgroup is None:
            line = text.count("\n", 0, match.start()) + 1
            what = "string" if match[0][0] == '"' else "regular expression"
            raise InvalidJob(f"the {what} of line {line} has no end", "constraint")
    return " ".join([*code, text[start:]]), patterns, seconds
