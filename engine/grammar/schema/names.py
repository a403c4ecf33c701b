"""The properties that an object's schemas admit, which are named properties, properties that match
a pattern, and all others. Does no I/O.
"""

from collections.abc import Callable, Iterator, Sequence

from llguidance import regex_to_lark

from switchyard.engine.errors import InvalidJob
from switchyard.engine.grammar.schema.branches import Branch, least_of, most_of
from switchyard.engine.grammar.schema.document import Document, Schema, refusal
from switchyard.engine.grammar.schema.objects import ObjectForm, Other
from switchyard.engine.grammar.schema.probe import disjoint, inline, is_empty, matching
from switchyard.engine.grammar.schema.terminals import Terminals
from switchyard.engine.grammar.spelling import BARE_CHARACTER, escaped

MAX_COUNT = 2**18  # properties: no text has more
MAX_MATCHED = 80  # characters: each one nests another group in a regular expression

# Makes the rule for values that are valid for all of some schemas. Returns the rule's name.
Make = Callable[[Sequence[Schema]], str]


def object_of(branch: Branch, document: Document, make: Make, terminals: Terminals) -> ObjectForm:
    """The shape of a branch's objects. Raises InvalidJob."""
    required = _closure(branch)
    names = dict.fromkeys(n for s in branch for n in s.content.get("properties", ()))
    names |= dict.fromkeys(n for s in branch for n in s.content.get("required", ()))
    names |= dict.fromkeys(sorted(required))
    patterns = _patterns(branch)
    matched = {p: set(matching(_named(p), names)) for p in patterns} if names else {}
    values = {name: make(_schemas(branch, document, name, matched)) for name in names}
    others: list[Other] = []
    for pattern, part in _others(list(names), patterns, matched, branch, terminals):
        schemas = _schemas(branch, document, None, {p: set() for p in patterns}, pattern)
        others.append(Other(part, make(schemas)))
    least = least_of(branch, "minProperties")
    most = most_of(branch, "maxProperties", MAX_COUNT)
    where = branch[0].where if branch else ""
    return ObjectForm(values, required, others, least, most, _dependent(branch), where)


def _closure(branch: Branch) -> frozenset[str]:
    """The required names, and the names that they require in turn."""
    required = {name for schema in branch for name in schema.content.get("required", ())}
    dependent = _dependent(branch)
    left = list(required)
    while left:
        more = set(dependent.get(left.pop(), ())) - required
        required |= more
        left += more
    return frozenset(required)


def _dependent(branch: Branch) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for schema in branch:
        for name, needed in schema.content.get("dependentRequired", {}).items():
            found.setdefault(name, []).extend(needed)
    return found


def _schemas(
    branch: Branch,
    document: Document,
    name: str | None,
    matched: dict[str, set[str]],
    pattern: str | None = None,
) -> list[Schema]:
    """The schemas of a property's value, which are those for its name, for the one pattern that it
    matches, or for all other names.
    """
    found: list[Schema | None] = []
    for content in (schema.content for schema in branch):
        listed = []
        if name is not None and name in content.get("properties", ()):
            listed.append(content["properties"][name])
        for known, value in content.get("patternProperties", {}).items():
            if known == pattern or name in matched[known]:
                listed.append(value)
        if not listed and "additionalProperties" in content:
            listed.append(content["additionalProperties"])
        found += map(document.at, listed)
    return [schema for schema in dict.fromkeys(found) if schema is not None]


def _patterns(branch: Branch) -> list[str]:
    """Raises InvalidJob if a name could match two of the patterns."""
    having = [s for s in branch if s.content.get("patternProperties")]
    patterns = list(dict.fromkeys(p for s in having for p in s.content["patternProperties"]))
    if patterns and (remark := disjoint(patterns)) is not None:
        raise refusal(having[0].where, remark)
    return patterns


def _named(pattern: str) -> str:
    return inline({"type": "string", "pattern": pattern})


def _others(
    names: Sequence[str],
    patterns: Sequence[str],
    matched: dict[str, set[str]],
    branch: Branch,
    terminals: Terminals,
) -> Iterator[tuple[str | None, str]]:
    """Yields each pattern, and None for all other names, with a part of a rule that admits such
    names but no named property. Omits patterns that match only named properties.
    """
    for pattern in patterns:
        part = _named(pattern)
        if taken := [name for name in names if name in matched[pattern]]:
            if any(len(name) > MAX_MATCHED for name in taken):
                said = f"patternProperties match a named property of more than {MAX_MATCHED}"
                raise refusal(branch[0].where, f"{said} characters")
            free = {"pattern": f"^({_complement(taken)})$"}
            part = inline({"type": "string", "allOf": [{"pattern": pattern}, free]})
        if not is_empty(part):
            yield pattern, part
    if not names and not patterns:
        yield None, "JSON_STRING"
        return
    excluded = [f"/{part}/" for pattern in patterns for part in _search(pattern, branch)]
    definition = terminals.other_names(names, excluded)
    if not patterns or not is_empty("A", "\n".join([f"A: {definition}", *terminals.lines()])):
        yield None, terminals.define(definition)


def _search(pattern: str, branch: Branch) -> Iterator[str]:
    """Regular expressions for plainly spelled strings that contain a match for `pattern`."""
    for part in _alternatives(regex_to_lark(pattern, "dw")):
        before = "" if part.startswith("^") else f"{BARE_CHARACTER}*"
        is_ended = part.endswith("$") and (len(part) - len(part[:-1].rstrip("\\"))) % 2
        after = "" if is_ended else f"{BARE_CHARACTER}*"
        inner = part.removeprefix("^")
        inner = inner[:-1] if is_ended else inner
        text = f'"{before}({inner}){after}"'
        try:
            is_empty(f"/{text}/")
        except InvalidJob as error:
            said = f"additionalProperties together with the pattern {pattern[:100]!r}: {error}"
            raise refusal(branch[0].where, said) from None
        yield text


def _alternatives(pattern: str) -> list[str]:
    """The alternatives of a regular expression, outside groups and classes."""
    parts, depth, in_class, start, i = [], 0, False, 0, 0
    while i < len(pattern):
        match pattern[i]:
            case "\\":
                i += 1
            case "[" if not in_class:
                in_class = True
                i += pattern[i + 1 : i + 2] == "]" or pattern[i + 1 : i + 3] == "^]"
            case "]":
                in_class = False
            case "(" if not in_class:
                depth += 1
            case ")" if not in_class:
                depth -= 1
            case "|" if not in_class and not depth:
                parts.append(pattern[start:i])
                start = i + 1
        i += 1
    return [*parts, pattern[start:]]


def _complement(texts: Sequence[str]) -> str:
    """A regular expression for all texts except these. Its size grows with the size of the
    texts.
    """
    by_first: dict[str, list[str]] = {}
    for text in texts:
        if text:
            by_first.setdefault(text[0], []).append(text[1:])
    known = "".join(map(escaped, by_first))
    parts = [rf"[^{known}](?s:.*)" if known else "(?s:.+)"]
    parts += [f"{escaped(first)}({_complement(rest)})" for first, rest in by_first.items()]
    if "" not in texts:
        parts.append("")
    return "|".join(parts)
