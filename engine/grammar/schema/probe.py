"""Asks llguidance what a schema's patterns and bounds admit, one byte at a time. Can be used on any
thread.
"""

import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from switchyard.engine.errors import InvalidJob
from switchyard.engine.panics import panics_as

LIMITS = LLParserLimits(
    initial_lexer_fuel=200_000,
    step_lexer_fuel=100_000,
    max_lexer_states=20_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
PANICS = panics_as(InvalidJob, "the constraint can't be enforced: it is too large", "constraint")

# Without its own white space, such a part shares the lexer of the rules around it. Otherwise the
# lexer would have to choose between the two where both could continue.
_OPTIONS = {"whitespace_flexible": False, "lenient": False, "coerce_one_of": False}


def inline(schema: Mapping[str, Any]) -> str:
    """The schema of a number or a string as a part of a rule."""
    return f"%json {json.dumps({**schema, 'x-guidance': _OPTIONS})}"


@functools.lru_cache(maxsize=4096)
def is_empty(part: str, terminals: str = "") -> bool:
    """Whether a part of a rule admits no text. Raises InvalidJob for a part that is refused."""
    matcher = _matcher(part, terminals)
    if matcher is None:
        return True
    with PANICS:
        admits_any = any(matcher.compute_logit_bias())
    return not admits_any


def matching(part: str, texts: Iterable[str]) -> list[str]:
    """Returns the members of `texts`, spelled as JSON, that the part of a rule admits. Raises
    InvalidJob.
    """
    matcher = _matcher(part, "")
    if matcher is None:
        return []
    found = []
    with PANICS:
        for text in texts:
            spelled = json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")
            copy = matcher.deep_copy()
            if copy.try_consume_tokens(list(spelled)) == len(spelled) and copy.is_accepting():
                found.append(text)
    return found


def disjoint(patterns: Iterable[str]) -> str | None:
    """Returns None if no text matches two of these patterns, otherwise llguidance's message. Raises
    InvalidJob.
    """
    schema = {"type": "object", "patternProperties": {pattern: {} for pattern in patterns}}
    with PANICS:
        matcher = LLMatcher(_bytes(), _grammar(inline(schema), ""), log_level=0, limits=LIMITS)
    return _first_line(matcher.get_error()) if matcher.is_error() else None


def _matcher(part: str, terminals: str) -> LLMatcher | None:
    """Returns None for a part that is known to admit no text."""
    with PANICS:
        matcher = LLMatcher(_bytes(), _grammar(part, terminals), log_level=0, limits=LIMITS)
    if not matcher.is_error():
        return matcher
    message = matcher.get_error()
    if "Unsatisfiable schema" in message:
        return None
    raise InvalidJob(_first_line(message), "constraint")


@functools.cache
def _bytes() -> LLTokenizer:
    return LLTokenizer("byte")


def _grammar(part: str, terminals: str) -> str:
    return LLMatcher.grammar_from_lark(f"start: {part}\n{terminals}")


def _first_line(message: str) -> str:
    line = message.split("failed to compile JSON schema: ")[-1].split("\n   1 |")[0]
    return " ".join(line.removesuffix("<non-verbose/>").split())[:500]
