"""Makes constraints from clients' JSON schemas, regular expressions, lists and grammars. Pure; on
request threads. `Grammars` compiles a constraint, and may still refuse it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from llguidance import LLMatcher, regex_to_lark

from switchyard.engine.errors import InvalidJob
from switchyard.engine.grammar.gbnf import to_lark
from switchyard.engine.grammar.json_schema import check_schema
from switchyard.engine.grammar.lark import check_lark, is_lark
from switchyard.engine.grammar.limits import MAX_SECONDS as MAX_SECONDS
from switchyard.engine.grammar.limits import check_seconds, seconds_of_regex
from switchyard.engine.grammar.spelling import literal
from switchyard.engine.job import Constraint

MAX_LENGTH = 64 * 1024  # characters of a regular expression or a grammar
MAX_SCHEMA_LENGTH = 128 * 1024  # characters of a schema

# Between the tokens of JSON. Bounded: a model in doubt would write spaces up to its limit.
WHITESPACE = r"( |\n[ \t]{0,20})"
OPTIONS = {
    "whitespace_pattern": WHITESPACE,
    "lenient": False,
    "coerce_one_of": False,
}


# The text before some JSON, the JSON's schema, the text after it.
Alternative = tuple[str, Mapping[str, Any] | bool, str]


def json_object() -> Constraint:
    """Any JSON object."""
    return json_schema({"type": "object"})


def json_schema(schema: Mapping[str, Any] | bool) -> Constraint:
    """JSON that is valid by `schema`, draft 2020-12 or older. Its properties come in the schema's
    order, with spaces as in `WHITESPACE`. Raises InvalidJob.
    """
    seconds_to_compile(schema)
    return Constraint(json.dumps({"grammars": [{"json_schema": _with_options(schema)}]}))


def is_json(constraint: Constraint) -> bool:
    """Whether the constraint is a JSON schema alone."""
    return json.loads(constraint.grammar)["grammars"][0].get("json_schema") is not None


def regex(pattern: str) -> Constraint:
    r"""Text that the whole of `pattern` matches: of Rust's `regex`, without anchors inside and
    word borders, and with \d, \w and \s in ASCII.
    """
    check_length(pattern)
    if not pattern:
        raise InvalidJob("the regular expression is empty", "constraint")
    lark = regex_to_lark(pattern, "dws")
    check_seconds(seconds_of_regex(lark))
    return Constraint(LLMatcher.grammar_from_regex(lark))


def choice(texts: Sequence[str]) -> Constraint:
    """One of `texts`. Raises InvalidJob."""
    if not texts or "" in texts:
        raise InvalidJob("there must be choices, none of them empty", "constraint")
    # In capitals, it is one regular expression: thousands of texts cost one state a step.
    alternatives = " | ".join(map(literal, dict.fromkeys(texts)))
    return _lark(f"start: CHOICE\nCHOICE: {alternatives}")


def grammar(text: str) -> Constraint:
    """Text of a grammar, in GBNF (llama.cpp) or Lark (llguidance). Raises InvalidJob."""
    check_length(text)
    lark = text if is_lark(text) else to_lark(text)
    check_lark(lark)
    return _lark(lark)


def template(
    alternatives: Sequence[Alternative],
    opening: str = "",
    separator: str | None = None,
    closing: str = "",
    special_ids: Mapping[str, int] | None = None,
) -> Constraint:
    """JSON in a frame, such as tool calls: `opening`, one of `alternatives`, `closing`. With a
    `separator`, any number of further alternatives may follow, each behind a separator. A text of
    `special_ids` stands for that token. Raises InvalidJob.
    """
    frame = _frame(alternatives, opening, separator, closing, special_ids)
    return _lark("\n".join(["start: frame", *frame]))


def template_or(
    form: Constraint,
    alternatives: Sequence[Alternative],
    opening: str = "",
    separator: str | None = None,
    closing: str = "",
    special_ids: Mapping[str, int] | None = None,
) -> Constraint:
    """Either a `template`, or JSON of `form`. Only JSON: of other forms the lexer may not know
    whether they have begun. Raises InvalidJob.
    """
    [other] = json.loads(form.grammar)["grammars"]
    assert is_json(form)
    frame = _frame(alternatives, opening, separator, closing, special_ids)
    calls = {"lark_grammar": "\n".join(["start: frame | @form", *frame])}
    return Constraint(json.dumps({"grammars": [calls, {**other, "name": "form"}]}))


def template_in_text(
    trigger: str,
    alternatives: Sequence[Alternative],
    opening: str = "",
    separator: str | None = None,
    closing: str = "",
    special_ids: Mapping[str, int] | None = None,
) -> Constraint:
    """Any text, in which each `trigger` begins a `template`. The trigger is the beginning of
    `opening`, or, without one, of each alternative.

    Without a trigger, the whole text is a template, or does not begin as one, with a brace or a
    space. Raises InvalidJob.
    """
    if not trigger:
        frame = _frame(alternatives, opening, separator, closing, special_ids)
        text = rf"TEXT: /([^{{{re.escape(opening[:1])}\s](?s:.)*)?/"
        return _lark("\n".join(["start: frame | TEXT", text, *frame]))
    if opening:
        opening = opening.removeprefix(trigger)
        rest = _frame(alternatives, opening, separator, closing, special_ids)
    else:
        first = [(before.removeprefix(trigger), s, behind) for before, s, behind in alternatives]
        rest = _frame(first, "", None, closing, special_ids)
    if special_ids and trigger in special_ids:
        head = f"head: TEXT <[{special_ids[trigger]}]>"
    else:  # lazy: the first trigger ends the text
        head = f"head[lazy]: TEXT {literal(trigger)}"
    start = ["start: block* TEXT", "block: head frame", head, "TEXT: /(?s:.)*/"]
    return _lark("\n".join([*start, *rest]))


def _frame(
    alternatives: Sequence[Alternative],
    opening: str,
    separator: str | None,
    closing: str,
    special_ids: Mapping[str, int] | None,
) -> list[str]:
    """The rules of a template. The first is named `frame`."""
    check_seconds(sum(seconds_to_compile(schema) for _, schema, _ in alternatives))
    rules, names = [], []
    for i, (before, schema, behind) in enumerate(alternatives):
        value = json.dumps(_with_options(schema))
        parts = [*_text(before, special_ids), f"json_{i}", *_text(behind, special_ids)]
        rules += [f"item_{i}: {' '.join(parts)}", f"json_{i}: %json {value}"]
        names.append(f"item_{i}")
    more = "" if separator is None else f"({' '.join([*_text(separator, special_ids), 'item'])})*"
    frame = [*_text(opening, special_ids), "item", more, *_text(closing, special_ids)]
    return [f"frame: {' '.join(frame)}", f"item: {' | '.join(names)}", *rules]


def seconds_to_compile(schema: Mapping[str, Any] | bool) -> float:
    """Estimated seconds of compilation. Raises InvalidJob for a schema that can't be honoured."""
    if schema is True:
        return 0.0
    if not isinstance(schema, Mapping):
        raise InvalidJob("the schema must be an object", "constraint")
    try:
        check_length(json.dumps(schema, allow_nan=False), MAX_SCHEMA_LENGTH)
    except RecursionError:
        raise InvalidJob("the schema is nested too deeply", "constraint") from None
    except ValueError as reason:
        raise InvalidJob(f"the schema is no JSON: {reason}", "constraint") from None
    return check_schema(schema)


def _with_options(schema: Mapping[str, Any] | bool) -> dict[str, Any]:
    return {**({} if isinstance(schema, bool) else schema), "x-guidance": OPTIONS}


def _lark(text: str) -> Constraint:
    return Constraint(json.dumps({"grammars": [{"lark_grammar": text}]}))


def _text(text: str, special_ids: Mapping[str, int] | None) -> list[str]:
    """`text` as parts of a rule: literals, and special tokens by their ids."""
    at, token = min(
        ((text.find(t), t) for t in special_ids or () if t in text), default=(len(text), "")
    )
    parts = [literal(text[:at])] if at else []
    if not token:
        return parts
    assert special_ids is not None
    return [*parts, f"<[{special_ids[token]}]>", *_text(text[at + len(token) :], special_ids)]


def check_length(text: str, limit: int = MAX_LENGTH) -> None:
    """Raises InvalidJob for a longer text, before further work."""
    if len(text) > limit:
        raise InvalidJob(f"it has more than {limit} characters", "constraint")
