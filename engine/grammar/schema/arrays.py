"""Rules for arrays. Does no I/O."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from switchyard.engine.grammar.schema.branches import Branch, least_of, most_of
from switchyard.engine.grammar.schema.document import Document, Json, Schema
from switchyard.engine.grammar.schema.objects import repetition


@dataclass(frozen=True, slots=True)
class Array:
    """The shape of an array. `first` and `rest` are names of rules."""

    first: Sequence[str]
    rest: str | None  # of all items after the first ones; None if there are none
    least: int
    most: int | None

    def needs(self) -> list[str]:
        """The rules for which every such array needs a value."""
        needed = list(self.first[: self.least])
        if self.least > len(self.first) and self.rest is not None:
            needed.append(self.rest)
        return needed

    def living(self, is_alive: Callable[[str], bool]) -> "Array | None":
        """Returns the array without items that can't have a value, or None if no such array is
        possible.
        """
        if not all(map(is_alive, self.first[: self.least])):
            return None
        first = list(self.first if self.most is None else self.first[: self.most])
        num_alive = next((i for i, name in enumerate(first) if not is_alive(name)), len(first))
        rest = self.rest
        if num_alive < len(first) or rest is None or not is_alive(rest):
            rest = None
        most = self.most
        if rest is None:
            most = num_alive if most is None else min(most, num_alive)
        if most is not None and most < self.least:
            return None
        return Array(first[:num_alive], rest, self.least, most)

    # State of a living array

    def renamed(self, name_of: Callable[[str], str]) -> "Array":
        """Returns a copy in which the items' rules have other names."""
        rest = None if self.rest is None else name_of(self.rest)
        return Array([name_of(name) for name in self.first], rest, self.least, self.most)

    def alternatives(self, name: str) -> list[str]:
        """The alternatives of the array's rule. The names of further `rules` begin with `name`."""
        found = [] if self.least else ['JSON_BEGIN "]"']
        if self.most != 0:
            fixed = self.first[: self._num_fixed] or [str(self.rest)]
            begin = f"JSON_BEGIN {' JSON_COMMA '.join(fixed)}"
            found += [f"{begin} {tail} JSON_END" for tail in self._tails(name, len(fixed))]
        return found

    def rules(self, name: str) -> list[str]:
        """The rules of the first items that may be missing. The items are halved repeatedly,
        because the compiler is recursive, so rules must not be nested deeply.
        """
        lines = []
        spans = [(self._num_fixed, len(self.first))]
        for i, j in spans:  # grows
            if j - i < 2:
                continue
            half = (i + j) // 2
            whole, some = self._all(name, i, half), self._some(name, i, half)
            lines.append(f"{name}_{i}_{j}: {some} | {whole} {self._some(name, half, j)}")
            lines.append(f"{name}_{i}_{j}_all: {whole} {self._all(name, half, j)}")
            spans += [(i, half), (half, j)]
        return lines

    @property
    def depth(self) -> int:
        """Returns how deeply the rules are nested, down to the items' rules."""
        return 1 + len(self.first).bit_length()

    @property
    def _num_fixed(self) -> int:
        return min(max(self.least, 1), len(self.first))

    def _tails(self, name: str, num_items: int) -> list[str]:
        """Returns what may follow this number of items."""
        more = ""
        if self.rest is not None:
            done = max(num_items, len(self.first))
            least = max(self.least - done, 0)
            most = None if self.most is None else self.most - done
            more = repetition(f"(JSON_COMMA {self.rest})", least, most)
        if num_items >= len(self.first):
            return [more]
        span = num_items, len(self.first)
        return [
            "",
            self._some(name, *span),
            *([f"{self._all(name, *span)} {more}"] if more else []),
        ]

    def _some(self, name: str, i: int, j: int) -> str:
        """One or more of the items from i to j."""
        return f"JSON_COMMA {self.first[i]}" if j - i == 1 else f"{name}_{i}_{j}"

    def _all(self, name: str, i: int, j: int) -> str:
        return f"JSON_COMMA {self.first[i]}" if j - i == 1 else f"{name}_{i}_{j}_all"


def array_of(branch: Branch, document: Document, make: Callable[[Sequence[Schema]], str]) -> Array:
    """The array of a branch. Raises InvalidJob."""
    parts = [_items(schema.content) for schema in branch]
    num_first = max((len(first) for first, _ in parts), default=0)

    def item(i: int) -> str:
        contents = [first[i] if i < len(first) else rest for first, rest in parts]
        schemas = dict.fromkeys(document.at(content) for content in contents)
        return make([schema for schema in schemas if schema is not None])

    first = [item(i) for i in range(num_first)]
    least, most = least_of(branch, "minItems"), most_of(branch, "maxItems")
    return Array(first, item(num_first), least, most)


def _items(content: Json) -> tuple[list[object], object]:
    """The schemas of the first items and of all other items, from the keywords of either draft."""
    items = content.get("items", True)
    if isinstance(items, list):
        return items, content.get("additionalItems", True)
    return ([] if "additionalItems" in content else content.get("prefixItems", [])), items
