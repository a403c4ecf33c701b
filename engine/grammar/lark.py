"""Grammars that clients write: GBNF to Lark, and what of Lark is refused."""

import json
import re

from llguidance.gbnf_to_lark import gbnf_to_lark, is_lark_syntax

from switchyard.engine.errors import InvalidJob
from switchyard.engine.grammar.json_schema import check_schema

# Rules and open brackets: the compiler's recursion must fit its stack.
MAX_NESTING = 1500

_TEXT = re.compile(
    r"""
      "(?:[^"\\\n]|\\.)*"i?           # a string
    | /(?:[^/\\\n]|\\.)+/[imslux]*    # a regular expression
    | //[^\n]* | \#[^\n]*             # a comment
    """,
    re.VERBOSE,
)
_JSON = re.compile(r"%json\s*(?=\{)")
_ATTRIBUTE = re.compile(r"\b(temperature|max_tokens|stop|stop_capture)\s*=")


def is_lark(text: str) -> bool:
    return is_lark_syntax(text)


def from_gbnf(text: str) -> str:
    """Raises InvalidJob."""
    try:
        return gbnf_to_lark(text)
    except RecursionError:
        raise InvalidJob("the grammar is nested too deeply", "constraint") from None
    except Exception as reason:  # the library raises plain Exception
        raise InvalidJob(f"the grammar is no GBNF: {reason}", "constraint") from None


def check_lark(text: str) -> None:
    """Raises InvalidJob for what llguidance would take, and not honour here."""
    bare = _TEXT.sub('""', _check_schemas(text))
    if "<" in bare:
        raise InvalidJob("special tokens can't be in a grammar", "constraint")
    if attribute := _ATTRIBUTE.search(bare):
        raise InvalidJob(f"{attribute[1]} is not supported in a grammar", "constraint")
    if sum(bare.count(c) for c in "([{:") > MAX_NESTING:
        raise InvalidJob(f"it has more than {MAX_NESTING} rules and brackets", "constraint")


def _check_schemas(text: str) -> str:
    """The text without what follows each `%json`."""
    first, *others = _JSON.split(text)
    for i, rest in enumerate(others):
        try:
            schema, end = json.JSONDecoder().raw_decode(rest)
        except (ValueError, RecursionError):
            continue  # not one that compiles
        check_schema(schema)
        others[i] = rest[end:]
    return " ".join([first, *others])
