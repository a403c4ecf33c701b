"""Pairs of options in a oneOf that might share a value. Does no I/O."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from switchyard.engine.grammar.limits import Estimate
from switchyard.engine.grammar.schema.branches import (
    ENUMERATING,
    branches,
    canonical,
    types_of,
    values_of,
)
from switchyard.engine.grammar.schema.document import Document, Schema

_PER_PAIR = 2e-6  # seconds


@dataclass(frozen=True, slots=True)
class _Option:
    schema: Schema | None
    types: frozenset[str]
    tags: dict[str, frozenset[str]]  # for objects only: values that required properties may have


def may_share(
    schema: Schema, document: Document, estimate: Estimate
) -> Iterator[tuple[Schema | None, Schema | None]]:
    """The pairs of options that can't be told apart by types and tags. Raises InvalidJob."""
    options = [_option(document.at(o), document, estimate) for o in schema.content["oneOf"]]
    done: set[tuple[int, int]] = set()
    for pair in _pairs(options):
        estimate.add(_PER_PAIR, schema.where)
        one, other = options[pair[0]], options[pair[1]]
        is_told = one.types.isdisjoint(other.types) or _are_tagged(one, other)
        if not is_told and pair not in done:
            done.add(pair)
            yield one.schema, other.schema


def _pairs(options: Sequence[_Option]) -> Iterator[tuple[int, int]]:
    """The pairs, except those with different values of the tag that most options have."""
    names = Counter(name for option in options for name in option.tags)
    [tag] = [name for name, _ in names.most_common(1)] or [""]
    by_value: dict[str, list[int]] = {}
    others = []
    for i, option in enumerate(options):
        if tag not in option.tags:
            others.append(i)
        for value in option.tags.get(tag, ()):
            by_value.setdefault(value, []).append(i)
    for group in by_value.values():
        yield from itertools.combinations(group, 2)
    tagged = [i for i, option in enumerate(options) if tag in option.tags]
    yield from itertools.product(others, tagged)
    yield from itertools.combinations(others, 2)


def _are_tagged(one: _Option, other: _Option) -> bool:
    """Whether a property has different values in the two options, which admit only objects."""
    return any(one.tags[name].isdisjoint(other.tags[name]) for name in one.tags.keys() & other.tags)


def _option(schema: Schema | None, document: Document, estimate: Estimate) -> _Option:
    found = branches([] if schema is None else [schema], document, estimate)
    types = frozenset(name for branch in found for name in types_of(branch)[0])
    tags: dict[str, frozenset[str]] = {}
    if len(found) == 1 and types == {"object"}:
        required = {name for s in found[0] for name in s.content.get("required", ())}
        for name in required:
            contents = [s.content.get("properties", {}).get(name) for s in found[0]]
            having = [c for c in contents if isinstance(c, dict) and c.keys() & ENUMERATING]
            values = values_of(tuple(Schema(content, "") for content in having))
            if values is not None:
                tags[name] = frozenset(map(canonical, values))
    return _Option(schema, types, tags)
