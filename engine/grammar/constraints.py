"""Creates constraints from clients' JSON schemas, regular expressions, lists of choices and
grammars. Does no I/O. Runs on request threads. `Grammars` compiles a constraint, and may still
refuse it.
"""

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from llguidance import LLMatcher, regex_to_lark

from switchyard.engine.errors import InvalidJob
from switchyard.engine.grammar import frames
from switchyard.engine.grammar.gbnf import to_lark
from switchyard.engine.grammar.lark import check_lark, is_lark
from switchyard.engine.grammar.limits import MAX_SECONDS as MAX_SECONDS
from switchyard.engine.grammar.limits import Estimate, check_seconds, seconds_of_regex
from switchyard.engine.grammar.schema.checks import checked
from switchyard.engine.grammar.schema.rules import Rules
from switchyard.engine.grammar.spelling import ANY_WHITESPACE, WHITESPACE, literal
from switchyard.engine.job import Constraint

MAX_LENGTH = 64 * 1024  # characters of a regular expression or a grammar
MAX_SCHEMA_LENGTH = 128 * 1024  # characters of a schema
_JSON = "json"  # name of a grammar for JSON only

# The text before the JSON, the JSON's schema, and the text after it.
Alternative = tuple[str, Mapping[str, Any] | bool, str]


def json_object() -> Constraint:
    """Returns a constraint that admits any JSON object."""
    return json_schema({"type": "object"})


def json_schema(schema: Mapping[str, Any] | bool) -> Constraint:
    """Returns a constraint for JSON that is valid according to `schema`, which follows draft
    2020-12 or an older draft. The properties of an object may be in any order, with spaces as in
    `spelling.WHITESPACE`. Raises InvalidJob.
    """
    text, _ = _compiled(schema)
    return _grammars({"name": _JSON, "lark_grammar": text})


def is_json(constraint: Constraint) -> bool:
    """Whether the constraint is just a JSON schema."""
    return bool(json.loads(constraint.grammar)["grammars"][0].get("name") == _JSON)


def regex(pattern: str) -> Constraint:
    r"""Returns a constraint for text that `pattern` matches as a whole. The syntax is that of
    Rust's `regex`, without inner anchors and word boundaries; \d, \w and \s match only ASCII.
    """
    check_length(pattern)
    if not pattern:
        raise InvalidJob("the regular expression is empty", "constraint")
    lark = regex_to_lark(pattern, "dws")
    check_seconds(seconds_of_regex(lark))
    return Constraint(LLMatcher.grammar_from_regex(lark))


def choice(texts: Sequence[str]) -> Constraint:
    """Returns a constraint for one of `texts`. Raises InvalidJob."""
    if not texts or "" in texts:
        raise InvalidJob(
            "there must be at least one choice, and no choice may be empty", "constraint"
        )
    # A name in capitals makes it one regular expression: thousands of texts cost one state per
    # step.
    alternatives = " | ".join(map(literal, dict.fromkeys(texts)))
    return _lark(f"start: CHOICE\nCHOICE: {alternatives}")


def grammar(text: str) -> Constraint:
    """Returns a constraint for text that follows a grammar in GBNF (llama.cpp) or Lark
    (llguidance). Raises InvalidJob.
    """
    check_length(text)
    if not is_lark(text):
        text = to_lark(text)
    text, schemas, seconds = check_lark(text)
    compiled = {name: _compiled(schema, ANY_WHITESPACE) for name, schema in schemas.items()}
    check_seconds(seconds + sum(more for _, more in compiled.values()))
    return _lark(text, {name: part for name, (part, _) in compiled.items()})


def template(
    alternatives: Sequence[Alternative],
    opening: str = "",
    separator: str | None = None,
    closing: str = "",
    special_ids: Mapping[str, int] | None = None,
) -> Constraint:
    """Returns a constraint for JSON in a frame, such as a tool call: `opening`, one of
    `alternatives`, and `closing`. With a `separator`, any number of further alternatives may
    follow, each after a separator. A key of `special_ids` stands for the token with that id. Raises
    InvalidJob.
    """
    frame, parts = _frame(alternatives, opening, separator, closing, special_ids)
    return _lark("\n".join(["start: frame", *frame]), parts)


def template_or(
    form: Constraint,
    alternatives: Sequence[Alternative],
    opening: str = "",
    separator: str | None = None,
    closing: str = "",
    special_ids: Mapping[str, int] | None = None,
) -> Constraint:
    """Returns a constraint for either a `template` or JSON that `form` admits. `form` must be JSON,
    because the lexer may not know whether text in another format has begun. Without an `opening`,
    the alternatives may be JSON themselves. Their keys must then keep their order and spelling,
    because otherwise the parser would have to hold back the whole answer. Raises InvalidJob.
    """
    [other] = json.loads(form.grammar)["grammars"]
    assert is_json(form)
    is_json_too = not opening and all(before.startswith("{") for before, _, _ in alternatives)
    write = frames.tokens if is_json_too else None
    frame, parts = _frame(alternatives, opening, separator, closing, special_ids, write)
    more = frames.TERMINALS if is_json_too else []
    text = "\n".join([f"start: frame | @{_JSON}", *frame, *more])
    return _lark(text, {**parts, _JSON: other["lark_grammar"]})


def template_in_text(
    trigger: str,
    alternatives: Sequence[Alternative],
    opening: str = "",
    separator: str | None = None,
    closing: str = "",
    special_ids: Mapping[str, int] | None = None,
) -> Constraint:
    """Returns a constraint for any text in which each `trigger` begins a `template`. The trigger is
    the beginning of `opening` or, without an opening, of each alternative. Without a trigger, the
    whole text is either a template, or a text that does not begin like one (with a brace or a
    space). Raises InvalidJob.
    """
    if not trigger:
        frame, parts = _frame(alternatives, opening, separator, closing, special_ids)
        text = rf"TEXT: /([^{{{re.escape(opening[:1])}\s](?s:.)*)?/"
        return _lark("\n".join(["start: frame | TEXT", text, *frame]), parts)
    if opening:
        opening = opening.removeprefix(trigger)
        rest, parts = _frame(alternatives, opening, separator, closing, special_ids)
    else:
        first = [(before.removeprefix(trigger), s, behind) for before, s, behind in alternatives]
        rest, parts = _frame(first, "", None, closing, special_ids)
    if special_ids and trigger in special_ids:
        head = f"head: TEXT <[{special_ids[trigger]}]>"
    else:  # lazy: the first trigger ends the text
        head = f"head[lazy]: TEXT {literal(trigger)}"
    start = ["start: block* TEXT", "block: head frame", head, "TEXT: /(?s:.)*/"]
    return _lark("\n".join([*start, *rest]), parts)


def after_thoughts(
    form: Constraint, start: str, end: str, special_ids: Mapping[str, int]
) -> Constraint:
    """Returns the constraint `form`, extended so that the model may first write any text between
    `start` and `end`. A key of `special_ids` stands for the token with that id.
    """
    first, *others = json.loads(form.grammar)["grammars"]
    name = first.setdefault("name", "form")
    closing = " ".join(_text(end, special_ids))
    is_lazy = "" if any(token in end for token in special_ids) else "[lazy]"
    lines = [
        f"start: @{name} | {' '.join(_text(start, special_ids))} thoughts SPACE? @{name}",
        f"thoughts{is_lazy}: TEXT {closing}",
        "TEXT: /(?s:.)*/",
        r"SPACE: /[ \n]+/",
    ]
    return _grammars({"lark_grammar": "\n".join(lines)}, first, *others)


def _frame(
    alternatives: Sequence[Alternative],
    opening: str,
    separator: str | None,
    closing: str,
    special_ids: Mapping[str, int] | None,
    write: Callable[[str], list[str]] | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Returns the rules of a template, beginning with `frame`, and the grammars that they refer to,
    by name. `write` turns the texts around an alternative's JSON into parts of a rule.
    """
    write = write or partial(_text, special_ids=special_ids)
    compiled = [_compiled(schema) for _, schema, _ in alternatives]
    check_seconds(sum(seconds for _, seconds in compiled))
    parts = {f"{_JSON}_{i}": text for i, (text, _) in enumerate(compiled)}
    rules, names = [], []
    for i, (before, _, behind) in enumerate(alternatives):
        item = [*write(before), f"@{_JSON}_{i}", *write(behind)]
        rules.append(f"item_{i}: {' '.join(item)}")
        names.append(f"item_{i}")
    more = "" if separator is None else f"({' '.join([*_text(separator, special_ids), 'item'])})*"
    frame = [*_text(opening, special_ids), "item", more, *_text(closing, special_ids)]
    return [f"frame: {' '.join(frame)}", f"item: {' | '.join(names)}", *rules], parts


def seconds_to_compile(schema: Mapping[str, Any] | bool) -> float:
    """The estimated seconds of compilation. Raises InvalidJob for a schema that can't be
    enforced.
    """
    return _compiled(schema)[1]


def _compiled(schema: Mapping[str, Any] | bool, whitespace: str = WHITESPACE) -> tuple[str, float]:
    """A grammar for the schema's JSON, and the estimated seconds to compile it."""
    if schema is not True and not isinstance(schema, Mapping):
        raise InvalidJob("the schema must be an object", "constraint")
    try:
        text = json.dumps(schema, allow_nan=False)
        check_length(text, MAX_SCHEMA_LENGTH)
        return _compiled_text(text, whitespace)
    except RecursionError:
        raise InvalidJob("the schema is nested too deeply", "constraint") from None
    except ValueError as reason:
        raise InvalidJob(f"the schema is not JSON: {reason}", "constraint") from None


@functools.lru_cache(maxsize=16)  # a request's tools are compiled three times each
def _compiled_text(text: str, whitespace: str) -> tuple[str, float]:
    schema = json.loads(text)
    estimate = Estimate()
    document = checked(schema, estimate)
    return Rules(document, estimate, whitespace).text(schema), estimate.seconds


def _lark(text: str, parts: Mapping[str, str] | None = None) -> Constraint:
    """A constraint from a grammar and the grammars that it refers to by name."""
    named = [{"name": name, "lark_grammar": part} for name, part in (parts or {}).items()]
    return _grammars({"lark_grammar": text}, *named)


def _grammars(*grammars: Mapping[str, str]) -> Constraint:
    return Constraint(json.dumps({"grammars": grammars}))


def _text(text: str, special_ids: Mapping[str, int] | None) -> list[str]:
    """Returns `text` as parts of a rule, as literals, and as the ids of special tokens."""
    at, token = min(
        ((text.find(t), t) for t in special_ids or () if t in text), default=(len(text), "")
    )
    parts = [literal(text[:at])] if at else []
    if not token:
        return parts
    assert special_ids is not None
    return [*parts, f"<[{special_ids[token]}]>", *_text(text[at + len(token) :], special_ids)]


def check_length(text: str, limit: int = MAX_LENGTH) -> None:
    """Raises InvalidJob before further work if the text is too long."""
    if len(text) > limit:
        raise InvalidJob(f"the constraint has more than {limit} characters", "constraint")
