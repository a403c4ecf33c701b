"""The terminals of one grammar for JSON. Does no I/O."""

import json
from collections.abc import Collection, Iterator

from switchyard.engine.grammar.spelling import (
    BARE_CHARACTER,
    STRING,
    WHITESPACE,
    literal,
    spellings,
)

# Maximum number of characters, in names and in strings of enums, that may have every spelling.
# Further ones have only the plain spelling.
MAX_SPELLED = 8192


class Terminals:
    """The terminals, one for each text, even if the text occurs several times. Not thread-safe."""

    def __init__(self, whitespace: str = WHITESPACE) -> None:
        self._whitespace = whitespace
        self._numbers: dict[str, int] = {}  # by the definition
        self._names: dict[str, tuple[str, bool]] = {}
        self._left = MAX_SPELLED

    def define(self, definition: str) -> str:
        number = self._numbers.setdefault(definition, len(self._numbers))
        return f"JSON_{number}"

    def name(self, name: str) -> str:
        """A property's name."""
        if name not in self._names:
            is_free = self.may_spell(len(name))
            text = f'/"{spellings(name)}"/' if is_free else literal(plain(name))
            self._names[name] = self.define(text), is_free
        return self._names[name][0]

    def other_names(self, names: Collection[str], excluded: Collection[str] = ()) -> str:
        """Returns the definition of a terminal for names that are not in `names` and don't match
        the terminals in `excluded`.
        """
        taken = [self.name(name) for name in names]
        # Plainly spelled names have no other spelling, so the others have no escapes either.
        is_free = all(self._names[name][1] for name in names) and not excluded
        whole = STRING if is_free else f'"{BARE_CHARACTER}*"'
        no_names = [f"~({' | '.join(taken)})"] if taken else []
        return " & ".join([f"/{whole}/", *no_names, *(f"~{one}" for one in excluded)])

    def may_spell(self, characters: int) -> bool:
        """Takes `characters` from the budget of characters that may be spelled in every way.
        Returns False if too few are left.
        """
        if characters > self._left:
            return False
        self._left -= characters
        return True

    def lines(self) -> Iterator[str]:
        space = self._whitespace
        yield f"JSON_STRING: /{STRING}/"
        for name, text in (("OPEN", r"\{"), ("BEGIN", r"\[")):
            yield f"JSON_{name}: /{text}{space}/"
        for name, text in (("CLOSE", r"\}"), ("END", r"\]")):
            yield f"JSON_{name}: /{space}{text}/"
        for name, text in (("COLON", ":"), ("COMMA", ",")):
            yield f"JSON_{name}: /{space}{text}{space}/"
        for definition, number in self._numbers.items():
            yield f"JSON_{number}: {definition}"


def plain(text: str) -> str:
    """A text as JSON spells it without unnecessary escapes."""
    has_halves = any("\ud800" <= character <= "\udfff" for character in text)
    return json.dumps(text, ensure_ascii=has_halves)
