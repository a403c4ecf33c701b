"""The names of models that clients may use, and their aliases."""

import threading
from collections.abc import Collection, Mapping
from itertools import islice

from switchyard.engine.errors import ModelError, ModelNotFound
from switchyard.engine.models.entry import Entry

MOST_LISTED = 10  # names in an error


def listed(names: Collection[str]) -> str:
    """Lists some of the names, for a short error message."""
    few = ", ".join(islice(names, MOST_LISTED))
    more = len(names) - MOST_LISTED
    return f"{few} and {more} more" if more > 0 else few or "none"


def check_alias(alias: str) -> None:
    """Raises ValueError for a text that can't be an alias."""
    if not alias or "*" in alias[:-1]:
        raise ValueError(f"{alias!r} must be a name, with at most one *, at its end")


def check_aliases(aliases: Mapping[str, str], names: Collection[str]) -> None:
    """Raises ModelError for an alias of a model that isn't in `names`."""
    for alias, name in aliases.items():
        if name not in names:
            raise ModelError(
                f"model_aliases: {alias!r} stands for {name!r}, which is not a served"
                f" model; available: {listed(names)}",
                "model_aliases",
            )


class Names:
    """The lock `changed` guards the aliases."""

    def __init__(
        self,
        entries: Mapping[str, Entry],
        changed: threading.Condition,
        aliases: Mapping[str, str],
        default: str | None = None,
    ) -> None:
        """`default`: the model for requests that don't name one; None means the first model. Raises
        ModelError for an alias of an unknown model.
        """
        self._entries = entries
        self._changed = changed
        self._aliases = dict(aliases)
        self.default = default
        check_aliases(aliases, entries)

    def find(self, name: str | None) -> Entry:
        """Raises ModelNotFound."""
        if not self._entries:  # possible after `only`
            raise ModelNotFound("this API key may not use any of the served models", "model")
        if name is None:
            return self._entries.get(self.default or "") or next(iter(self._entries.values()))
        entry = self._entries.get(name) or self._entries.get(self._aliased(name))
        if entry is None:
            there = f"available: {listed(self._entries)}"
            raise ModelNotFound(f"model {name[:100]!r} does not exist; {there}", "model")
        return entry

    def point(self, alias: str, name: str) -> str | None:
        """Point an alias to a model. Returns its former target. Raises ModelNotFound."""
        entry = self.find(name)
        with self._changed:
            before, self._aliases[alias] = self._aliases.get(alias), entry.name
            return before

    def aliases_of(self, entry: Entry) -> tuple[str, ...]:
        """The caller must hold the lock."""
        return tuple(alias for alias, name in self._aliases.items() if name == entry.name)

    def only(self, entries: Mapping[str, Entry]) -> "Names":
        """Returns a view of only some entries."""
        some = Names(entries, self._changed, {}, self.default)
        some._aliases = self._aliases
        return some

    def _aliased(self, name: str) -> str:
        """The target of the alias `name` or, if there is no such alias, of the longest matching
        alias with `*`.
        """
        with self._changed:
            fitting = [a for a in self._aliases if a.endswith("*") and name.startswith(a[:-1])]
            alias = name if name in self._aliases else max(fitting, key=len, default=name)
            return self._aliases.get(alias, name)
