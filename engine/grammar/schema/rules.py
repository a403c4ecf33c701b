"""Rules in Lark for the JSON that a schema admits. Does no I/O. There is a rule for each set of
schemas that a value must match together, so that references, combinations and recursion are handled
in the same way.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from switchyard.engine.grammar.limits import Estimate
from switchyard.engine.grammar.schema.arrays import Array, array_of
from switchyard.engine.grammar.schema.branches import (
    ENUMERATING,
    TYPES,
    Branch,
    branches,
    canonical,
    type_of,
    types_of,
    values_of,
)
from switchyard.engine.grammar.schema.document import (
    NOTHING,
    Document,
    Schema,
    refusal,
    says_nothing,
)
from switchyard.engine.grammar.schema.names import object_of
from switchyard.engine.grammar.schema.numbers import numbers
from switchyard.engine.grammar.schema.objects import ObjectForm
from switchyard.engine.grammar.schema.one_of import may_share
from switchyard.engine.grammar.schema.strings import strings
from switchyard.engine.grammar.schema.terminals import Terminals
from switchyard.engine.grammar.spelling import WHITESPACE

MAX_NESTING = 1000  # rules inside rules: the compiler's recursion must fit its stack

# Seconds, including the compiler's.
_PER_RULE = 8e-5
_PER_PROPERTY = 6e-5
_PER_ITEM = 3e-5
_PER_VALUE = 1e-5  # of const and enum


@dataclass(slots=True)
class _Rule:
    """The values of a set of schemas, as alternatives."""

    name: str
    schemas: Sequence[Schema]
    parts: dict[str, None] = field(default_factory=dict)  # of scalars
    arrays: list[Array] = field(default_factory=list)
    objects: list[ObjectForm] = field(default_factory=list)
    others: list[str] = field(default_factory=list)  # rules for arrays and objects in enums
    is_alive: bool = False


class Rules:
    """The rules of one schema, which must have been checked. Not thread-safe."""

    def __init__(
        self, document: Document, estimate: Estimate, whitespace: str = WHITESPACE
    ) -> None:
        self._document = document
        self._estimate = estimate
        self._terminals = Terminals(whitespace)
        self._rules: dict[frozenset[Schema], _Rule] = {}
        self._by_name: dict[str, _Rule] = {}
        self._left: list[_Rule] = []
        self._one_of: list[Schema] = []
        self._one_of_known: set[Schema] = set()
        self._same: dict[tuple[str, ...], str] = {}  # names of rules by their parts
        self._constants: dict[Any, str] = {}  # names of rules for one value each

    def text(self, root: Any) -> str:
        """The whole grammar, beginning with the rule `start`. Raises InvalidJob."""
        schema = self._document.at(root)
        start = self._by_name[self._rule([] if schema is None else [schema])]
        self._fill()
        pairs = self._pairs()
        self._find_living()
        for where, name in pairs:
            if self._by_name[name].is_alive:
                said = "two schemas of its oneOf may admit the same value; use anyOf"
                raise refusal(where, said)
        if not start.is_alive:
            raise refusal(
                self._dead_end(start), "it is unsatisfiable: no finite value can match it"
            )
        lines = [f"start: {start.name}", *self._lines(start), *self._terminals.lines()]
        return "\n".join(lines)

    def _rule(self, schemas: Sequence[Schema]) -> str:
        """The name of the rule for values that are valid for all of `schemas`."""
        key = frozenset(schemas)
        if key not in self._rules:
            rule = self._rules[key] = self._new(schemas, schemas[0].where if schemas else "")
            self._left.append(rule)
        return self._rules[key].name

    def _new(self, schemas: Sequence[Schema], where: str) -> _Rule:
        self._estimate.add(_PER_RULE, where)
        rule = _Rule(f"json_{len(self._by_name)}", tuple(dict.fromkeys(schemas)))
        self._by_name[rule.name] = rule
        return rule

    def _constant(self, value: Any, where: str) -> str:
        """The name of the rule that admits only this value; equal values share a rule."""
        kind = type_of(value)
        items = [self._constant(item, where) for item in value] if kind == "array" else []
        named = value.items() if kind == "object" else ()
        members = {name: self._constant(item, where) for name, item in named}
        inside: list[Any] = [*items, *sorted(members.items())]
        key = (kind, *(inside or [canonical(value)]))
        if key not in self._constants:
            rule = self._new((), where)
            self._estimate.add(len(items) * _PER_ITEM + len(members) * _PER_PROPERTY, where)
            self._constants[key] = rule.name
            if kind == "array":
                rule.arrays.append(Array(items, None, len(items), len(items)))
            elif kind == "object":
                rule.objects.append(ObjectForm(members, frozenset(members), (), 0, None, {}, where))
            else:
                parts = self._scalars((), {kind}, False, {kind: [value]})
                rule.parts |= dict.fromkeys(parts)
        return self._constants[key]

    def _note(self, schema: Schema) -> None:
        if schema not in self._one_of_known:
            self._one_of_known.add(schema)
            self._one_of.append(schema)

    def _fill(self) -> None:
        while self._left:
            rule = self._left.pop()
            for branch in branches(rule.schemas, self._document, self._estimate, self._note):
                self._add(rule, branch)

    def _add(self, rule: _Rule, branch: Branch) -> None:
        """Adds the alternatives of one branch for each type of value."""
        types, is_integer = types_of(branch)
        values, where = values_of(branch), branch[0].where if branch else ""
        listed: dict[str, list[Any] | None] = dict.fromkeys(TYPES)
        if values is not None:
            self._estimate.add(len(values) * _PER_VALUE, where)
            listed = {t: [v for v in values if type_of(v) == t] for t in TYPES}
        parts = self._scalars(branch, types, is_integer, listed)
        rule.parts |= dict.fromkeys(parts)
        if values is not None:
            rest = [self._document.without(schema, ENUMERATING) for schema in branch]
            is_alone = all(says_nothing(schema.content, {"type"}) for schema in rest)
            for value in [v for t in ("array", "object") if t in types for v in listed[t] or ()]:
                rule.others.append(
                    self._constant(value, where)
                    if is_alone
                    else self._rule([self._document.value(value, where), *rest])
                )
            return
        if "array" in types:
            array = array_of(branch, self._document, self._rule)
            self._estimate.add(len(array.first) * _PER_ITEM, where)
            rule.arrays.append(array)
        if "object" in types:
            one = object_of(branch, self._document, self._rule, self._terminals)
            self._estimate.add(len(one.values) * _PER_PROPERTY, where)
            rule.objects.append(one)

    def _scalars(
        self,
        branch: Branch,
        types: Collection[str],
        is_integer: bool,
        listed: Mapping[str, list[Any] | None],
    ) -> list[str]:
        """The parts of a rule. `listed`: the allowed values of each type, or None if all are
        allowed.
        """
        parts: list[str] = []
        if "null" in types and listed["null"] != []:
            parts.append('"null"')
        if "boolean" in types:
            booleans = listed["boolean"]
            words = ["true", "false"] if booleans is None else map(json.dumps, booleans)
            parts += [f'"{word}"' for word in words]
        if "number" in types:
            parts += numbers(branch, is_integer, listed["number"], self._estimate)
        if "string" in types:
            parts += strings(branch, listed["string"], self._terminals, self._estimate)
        return parts

    def _pairs(self) -> list[tuple[str, str]]:
        """For each pair of options in a `oneOf` that might share a value: the location, and the
        name of a rule that must not admit any value.
        """
        pairs: list[tuple[str, str]] = []
        for schema in self._one_of:  # grows
            rest = self._document.without(schema, frozenset({"oneOf"}))
            for one, other in may_share(schema, self._document, self._estimate):
                both = [option for option in (rest, one, other) if option is not None]
                pairs.append((schema.where, self._rule(both)))
            self._fill()
        return pairs

    def _find_living(self) -> None:
        """Finds the rules that admit at least one finite value."""
        users: dict[str, list[_Rule]] = {}
        for rule in self._by_name.values():
            for name in self._parts_of(rule):
                users.setdefault(name, []).append(rule)
        left = [rule for rule in self._by_name.values() if self._can_live(rule)]
        for rule in left:  # grows
            for user in users.get(rule.name, ()):
                if not user.is_alive and self._can_live(user):
                    left.append(user)

    def _parts_of(self, rule: _Rule) -> Iterator[str]:
        yield from rule.others
        for array in rule.arrays:
            yield from [*array.first, *([] if array.rest is None else [array.rest])]
        for one in rule.objects:
            yield from [*one.values.values(), *(other.value for other in one.others)]

    def _can_live(self, rule: _Rule) -> bool:
        rule.is_alive = bool(
            rule.parts
            or any(map(self._is_alive, rule.others))
            or any(one.living(self._is_alive) for one in rule.arrays)
            or any(one.living(self._is_alive) for one in rule.objects)
        )
        return rule.is_alive

    def _is_alive(self, name: str) -> bool:
        return self._by_name[name].is_alive

    def _dead_end(self, rule: _Rule) -> str:
        """The location of a schema that prevents `rule` from admitting any value."""
        passed: set[str] = set()
        where = ""
        while rule.name not in passed:
            passed.add(rule.name)
            if rule.schemas and NOTHING not in rule.schemas:
                where = rule.schemas[0].where
            needed = [*rule.others]
            needed += [name for array in rule.arrays for name in array.needs()]
            needed += [name for one in rule.objects for name in one.needs()]
            rule = next((r for n in needed if not (r := self._by_name[n]).is_alive), rule)
        return where

    # Text, once it is known which rules are alive

    def _lines(self, start: _Rule) -> Iterator[str]:
        """The rules that `start` needs, in the order in which the compiler processes them, so that
        depth means the same in both.
        """
        done: set[str] = set()
        left = [(start, 1)]
        while left:
            rule, depth = left.pop()
            if rule.name in done:
                continue
            done.add(rule.name)
            if depth > MAX_NESTING:
                where = rule.schemas[0].where if rule.schemas else ""
                raise refusal(
                    where, "it is nested too deeply, including the schemas that it refers to"
                )
            lines, needed = self._of_rule(rule)
            yield from lines
            below = [(self._by_name[n], depth + more) for n, more in needed if n in self._by_name]
            left += reversed(below)

    def _of_rule(self, rule: _Rule) -> tuple[list[str], list[tuple[str, int]]]:
        """The lines of a rule, and the names of the rules that they need, with their depths."""
        others = list(filter(self._is_alive, rule.others))
        alternatives = [*rule.parts, *map(self._name_of, others)]
        needed = [(name, 1) for name in others]
        more: list[str] = []
        for array in filter(None, (one.living(self._is_alive) for one in rule.arrays)):
            name = f"{rule.name}_{len(alternatives)}"
            renamed = array.renamed(self._name_of)
            alternatives += renamed.alternatives(name)
            more += renamed.rules(name)
            items = [*renamed.first, *([] if renamed.rest is None else [renamed.rest])]
            needed += [(item, array.depth) for item in items]
        objects = [o for one in rule.objects if (o := one.living(self._is_alive))]
        for one in objects:
            is_alone = not alternatives and len(objects) == 1
            name = rule.name if is_alone else f"{rule.name}_{len(alternatives)}"
            renamed_object = one.renamed(self._name_of)
            more += renamed_object.rules(name, self._terminals.name)
            values = [*renamed_object.values.values(), *(o.value for o in renamed_object.others)]
            needed += [(value, one.depth + (not is_alone)) for value in values]
            if is_alone:
                return more, needed
            alternatives.append(name)
        return [f"{rule.name}: {' | '.join(dict.fromkeys(alternatives))}", *more], needed

    def _name_of(self, name: str) -> str:
        """The name of the first rule with the same text, if that rule has only scalars."""
        rule = self._by_name[name]
        if rule.arrays or rule.objects or rule.others:
            return name
        parts = tuple(rule.parts)
        if parts == ("JSON_STRING",):
            return parts[0]
        return self._same.setdefault(parts, name)
