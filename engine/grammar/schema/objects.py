"""Rules for objects. Properties may occur in any order, each at most once, and all required
properties must occur. Does no I/O. A rule has a parameter, which is a feature of llguidance. The
parameter has a bit for each property that has occurred. With `minProperties` or `maxProperties`,
the parameter also counts optional properties.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from switchyard.engine.grammar.schema.document import refusal

BITS = 64  # of a rule's parameter


@dataclass(frozen=True, slots=True)
class Other:
    """Properties that the schema doesn't name."""

    name: str  # a part of a rule
    value: str  # the name of a rule


@dataclass(frozen=True, slots=True)
class ObjectForm:
    """The shape of an object. `values`, and the `value` of each of `others`, are names of rules."""

    values: Mapping[str, str]  # by the property's name, in the schema's order
    required: frozenset[str]
    others: Sequence[Other]
    least: int  # properties
    most: int | None
    dependent: Mapping[str, Sequence[str]]  # names that must occur wherever the key does
    where: str

    def needs(self) -> Iterator[str]:
        """The rules for which every such object needs a value."""
        yield from (self.values[name] for name in self.values if name in self.required)

    def living(self, is_alive: Callable[[str], bool]) -> "Living | None":
        """The object without properties that can't have a value, or None if no such object is
        possible. The names of those properties remain excluded from the other names.
        """
        if not all(map(is_alive, self.needs())):
            return None
        dead = {name for name, value in self.values.items() if not is_alive(value)}
        while more := {
            name
            for name, needed in self.dependent.items()
            if name in self.values and name not in dead and not dead.isdisjoint(needed)
        }:
            dead |= more
        values = {name: value for name, value in self.values.items() if name not in dead}
        others = [other for other in self.others if is_alive(other.value)]
        most = None if self.most is None else self.most - len(self.required)
        if most is not None and most <= 0:
            values = {name: value for name, value in values.items() if name in self.required}
            others = []
        optional = len(values) - len(self.required)
        least = max(self.least - len(self.required), 0)
        if (
            self.required & dead
            or (most is not None and most < least)
            or (not others and least > optional)
        ):
            return None
        if not others and most is not None and most >= optional:
            most = None
        dependent = {name: self.dependent[name] for name in self.dependent if name in values}
        return Living(values, self.required, others, least, most, dependent, self.where)


@dataclass(frozen=True, slots=True)
class Living:
    """An object in which each property can have a value."""

    values: Mapping[str, str]
    required: frozenset[str]
    others: Sequence[Other]
    least: int  # properties in addition to the required ones
    most: int | None
    dependent: Mapping[str, Sequence[str]]
    where: str

    def renamed(self, name_of: Callable[[str], str]) -> "Living":
        """Returns a copy in which the values' rules have other names."""
        values = {name: name_of(value) for name, value in self.values.items()}
        others = [Other(other.name, name_of(other.value)) for other in self.others]
        return replace(self, values=values, others=others)

    def rules(self, name: str, spell: Callable[[str], str]) -> list[str]:
        """The rules of such objects. The rules' names begin with `name`. `spell` returns a
        property's name as a terminal. Raises InvalidJob.
        """
        if self.others and self.least > 1:
            # A name that the schema lacks may occur twice, but counts once.
            said = "minProperties may exceed the required properties by at most one"
            raise refusal(self.where, f"{said}, unless additionalProperties is false")
        if not self.values:
            return [f"{name}: {self._of_others()}"]
        names = [n for n in self.values if n in self.required]
        names += [n for n in self.values if n not in self.required]
        counter = max(self.least, self.most or 0).bit_length()
        if not self.others and len(names) <= BITS:
            counter = 0  # the names' own bits show how many have occurred
        size = BITS - counter
        if len(names) <= size:  # all together
            blocks = [names]
        elif self.dependent:
            raise refusal(self.where, f"dependentRequired in an object of more than {size} names")
        else:
            listed = list(self.values)
            blocks = [listed[i : i + size] for i in range(0, len(listed), size)]
            blocks = [sorted(block, key=lambda n: n not in self.required) for block in blocks]
        return list(_Rules(self, name, blocks, counter, spell).lines())

    @property
    def depth(self) -> int:
        """How deeply the rules are nested, down to the values' rules."""
        return 4 + len(self.values) // (BITS // 2)

    def _of_others(self) -> str:
        least, most = self.least, self.most
        empty = 'JSON_OPEN "}"'
        if not self.others or most == 0:
            return empty
        member = " | ".join(f"{o.name} JSON_COLON {o.value}" for o in self.others)
        more = repetition(f"(JSON_COMMA ({member}))", max(least - 1, 0), most and most - 1)
        whole = f"JSON_OPEN ({member}) {more} JSON_CLOSE"
        return whole if least else f"{empty} | {whole}"


def repetition(part: str, least: int, most: int | None) -> str:
    """A part of a rule, repeated from `least` to `most` times."""
    if most == 0:
        return ""
    if most is None:
        return f"{part}*" if not least else f"{part}{{{least},}}"
    return f"{part}{{{least},{most}}}"


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules of an object with named properties."""

    of: Living
    name: str
    blocks: Sequence[Sequence[str]]  # of names, the required ones first; each fits into the bits
    counter: int  # bits at the top that count optional properties; may be 0
    spell: Callable[[str], str]

    def lines(self) -> Iterator[str]:
        can_be_empty = not self.of.required and not self.of.least
        empty = ['"}"'] if can_be_empty else []
        yield f"{self.name}: JSON_OPEN {self.name}_f::0x0"
        yield f"{self.name}_f::_: {_either([*empty, f'{self.name}_m0::_'])}"
        for i in range(len(self.blocks)):
            yield f"{self.name}_m{i}::_: {_either(self._members(i))}"
            yield f"{self.name}_r{i}::_: {_either(self._rests(i))}"
            if self.counter:  # after a property that isn't counted yet
                yield f"{self.name}_n{i}::_: {_either(self._rests(i, 1))}"

    def _members(self, i: int) -> Iterator[str]:
        """Another property of this block, or of the next one."""
        limit = self._below_most(i)
        for bit, name in enumerate(self.blocks[i]):
            is_required = name in self.of.required
            following = "r" if is_required or not self.counter else "n"
            conditions = [f"bit_clear({bit})", *([] if is_required else limit)]
            yield (
                f"{self.spell(name)} JSON_COLON {self.of.values[name]}"
                f" {self.name}_{following}{i}::set_bit({bit}){_if(conditions)}"
            )
        for other in self.of.others:
            following = f"{self.name}_r{i}::" + (f"incr({self._count})" if self.counter else "_")
            yield f"{other.name} JSON_COLON {other.value} {following}{_if(limit)}"
        if i + 1 < len(self.blocks):
            kept = ((1 << self.counter) - 1) << (BITS - self.counter)
            left = 1 if self.of.others else self._optional_after(i)
            conditions = [*self._done(i), *self._at_least(i, left)]
            yield f"{self.name}_m{i + 1}::bit_and({kept:#x}){_if(conditions)}"

    def _rests(self, i: int, more: int = 0) -> Iterator[str]:
        """Yields what follows a property, which is the object's end, or a comma if a property may
        follow. `more`: the number of properties that have occurred but aren't counted yet.
        """
        must_follow = any(self._required(j) for j in range(i + 1, len(self.blocks)))
        if not must_follow:
            ends = [*self._done(i), *self._at_least(i, more), *self._dependents(i)]
            yield f"JSON_CLOSE{_if(ends)}"
        following = f"{self.name}_m{i}::" + (f"incr({self._count})" if more else "_")
        conditions = [] if must_follow else self._can_follow(i, more)
        if must_follow and more:
            # Without any condition, llguidance 1.9.1 panics: it inlines a rule's only alternative.
            conditions = [f"ge({self._count}, 0)"]
        yield f"JSON_COMMA {following}{_if(conditions)}"

    def _can_follow(self, i: int, more: int) -> list[str]:
        """The conditions under which a property may follow, if no later block has a required
        property.
        """
        required, all_names = self._required(i), len(self.blocks[i])
        missing = [f"not(is_ones([0:{required}]))"] if required else []
        limit = self._below_most(i, more)
        if not self.of.others and not self._optional_after(i):
            if required == all_names:
                return missing
            # According to the names' own bits, one is missing if fewer than `most` have occurred.
            if not limit or self.counter:
                limit = [*limit, f"not(is_ones([{required}:{all_names}]))"]
        return [_fold("or", [*missing, _fold("and", limit)])] if limit else []

    def _optional_after(self, i: int) -> int:
        return sum(len(self.blocks[j]) - self._required(j) for j in range(i + 1, len(self.blocks)))

    def _done(self, i: int) -> list[str]:
        required = self._required(i)
        return [f"is_ones([0:{required}])"] if required else []

    def _at_least(self, i: int, more: int) -> list[str]:
        if self.of.least <= more:
            return []
        if self.counter:
            return [f"ge({self._count}, {self.of.least - more})"]
        return [f"bit_count_ge([{self._required(i)}:{len(self.blocks[i])}], {self.of.least})"]

    def _below_most(self, i: int, more: int = 0) -> list[str]:
        if self.of.most is None:
            return []
        if self.counter:
            return [f"lt({self._count}, {self.of.most - more})"]
        # All bits of optional properties. There are some; otherwise no such limit would be left.
        return [f"bit_count_lt([{self._required(i)}:{len(self.blocks[i])}], {self.of.most})"]

    def _dependents(self, i: int) -> list[str]:
        bits = {name: bit for bit, name in enumerate(self.blocks[i])}
        return [
            f"or(bit_clear({bits[name]}), bit_set({bits[other]}))"
            for name, needed in self.of.dependent.items()
            for other in needed
            if other not in self.of.required and other != name
        ]

    def _required(self, i: int) -> int:
        return sum(name in self.of.required for name in self.blocks[i])

    @property
    def _count(self) -> str:
        return f"[{BITS - self.counter}:{BITS}]"


def _either(alternatives: Sequence[str] | Iterator[str]) -> str:
    return "\n  | ".join(alternatives)


def _if(conditions: Sequence[str]) -> str:
    return f" %if {_fold('and', conditions)}" if conditions else ""


def _fold(operator: str, conditions: Sequence[str]) -> str:
    """Joins conditions as a balanced tree, because the compiler processes them recursively."""
    if len(conditions) == 1:
        return conditions[0]
    half = len(conditions) // 2
    return f"{operator}({_fold(operator, conditions[:half])}, {_fold(operator, conditions[half:])})"
