"""Rules for strings. Does no I/O."""

import json
from collections.abc import Sequence
from typing import Any

from switchyard.engine.errors import InvalidJob
from switchyard.engine.grammar.limits import Estimate, seconds_of_regex
from switchyard.engine.grammar.schema.branches import Branch, least_of, most_of
from switchyard.engine.grammar.schema.document import refusal
from switchyard.engine.grammar.schema.probe import inline, is_empty, matching
from switchyard.engine.grammar.schema.terminals import Terminals, plain
from switchyard.engine.grammar.spelling import CHARACTER, literal, spellings

FORMS = ("pattern", "format")

_PER_PROBE = 2e-3  # seconds


def strings(
    branch: Branch, values: Sequence[str] | None, terminals: Terminals, estimate: Estimate
) -> list[str]:
    """The alternatives of a rule for a branch's strings, or an empty list if no string is
    possible.
    """
    forms = _forms(branch)
    least, most = least_of(branch, "minLength"), most_of(branch, "maxLength")
    if most is not None and most < least:
        return []
    if values is not None:
        values = [v for v in values if least <= len(v) and (most is None or len(v) <= most)]
        if values and forms:
            values = _of_forms(branch, forms, values, estimate)
        return [_choice(values, terminals)] if values else []
    if forms:
        schema = {"type": "string", "allOf": forms, "minLength": least}
        part = inline(schema if most is None else {**schema, "maxLength": most})
        _add(branch, forms, part, estimate)
        try:
            return [] if is_empty(part) else [part]
        except InvalidJob as error:
            raise _placed(branch, error) from None
    if not least and most is None:
        return ["JSON_STRING"]
    return [f'/"{CHARACTER}{{{least},{"" if most is None else most}}}"/']


def _choice(values: Sequence[str], terminals: Terminals) -> str:
    # As one terminal, thousands of texts cost one state per step.
    if terminals.may_spell(sum(map(len, values))):
        return terminals.define(f'/"({"|".join(map(spellings, values))})"/')
    texts = [text for value in values for text in (plain(value), json.dumps(value))]
    return terminals.define(" | ".join(map(literal, dict.fromkeys(texts))))


def _forms(branch: Branch) -> list[dict[str, Any]]:
    """What the schemas of a branch require of a string's format, without repetitions."""
    said = [{k: s.content[k] for k in FORMS if k in s.content} for s in branch]
    return list({json.dumps(one): one for one in said if one}.values())


def _of_forms(
    branch: Branch, forms: list[dict[str, Any]], values: Sequence[str], estimate: Estimate
) -> list[str]:
    part = inline({"type": "string", "allOf": forms})
    _add(branch, forms, part, estimate)
    try:
        return matching(part, values)
    except InvalidJob as error:
        raise _placed(branch, error) from None


def _add(branch: Branch, forms: list[dict[str, Any]], part: str, estimate: Estimate) -> None:
    patterns = [form["pattern"] for form in forms if "pattern" in form]
    seconds = _PER_PROBE + seconds_of_regex(*patterns)
    estimate.add_once(part, seconds, _where(branch))


def _placed(branch: Branch, error: InvalidJob) -> InvalidJob:
    return refusal(_where(branch), str(error))


def _where(branch: Branch) -> str:
    return next(s.where for s in branch if not s.content.keys().isdisjoint(FORMS))
