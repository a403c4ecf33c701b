"""Translates llama.cpp's GBNF to Lark. Rule names become numbers, and characters become code
points. Does no I/O. As in Lark, a rule that doesn't refer to itself on any path is a terminal,
which the compiler treats as one regular expression. Other rules consist of terminals.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from switchyard.engine.errors import InvalidJob
from switchyard.engine.grammar.spelling import literal

_SPACE = re.compile(r"(?:[ \t]|\#[^\r\n]*+)*+")
_LINES = re.compile(r"(?:[ \t\r\n]|\#[^\r\n]*+)*+")
_NAME = re.compile(r"[a-zA-Z0-9-]++")
_COUNT = re.compile(r"\{[ \t]*+(\d{1,6})[ \t]*+(?:(,)[ \t]*+(\d{1,6})?+[ \t]*+)?\}")
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]"}
_DIGITS = {"x": 2, "u": 4, "U": 8}
MAX_DEPTH = 100  # of groups


@dataclass(slots=True)
class _Rule:
    number: int
    at: int  # where it is first named
    text: list[str] = field(default_factory=list)  # every second piece is another rule's name
    references: list[str] = field(default_factory=list)
    is_defined: bool = False


def to_lark(text: str) -> str:
    """Raises InvalidJob, which reports the line and column."""
    return _Reader(text).lark()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._rules: dict[str, _Rule] = {}

    def lark(self) -> str:
        self._skip(_LINES)
        while self._at < len(self._text):
            self._rule()
        root = self._rules.get("root")
        if root is None or not root.is_defined:
            raise self._error("there is no rule named root", 0)
        for name, rule in self._rules.items():
            if not rule.is_defined:
                raise self._error(f"there is no rule named {name[:100]}", rule.at)
        terminals = self._terminals()
        names = {
            name: f"T{rule.number}" if name in terminals else f"r{rule.number}"
            for name, rule in self._rules.items()
        }
        lines = ["%llguidance {}", f"start: {names['root']}"]
        for name, rule in self._rules.items():
            pieces = [names[p] if i % 2 else p for i, p in enumerate(rule.text)]
            lines.append(f"{names[name]}: {''.join(pieces)}")
        return "\n".join(lines)

    def _terminals(self) -> set[str]:
        """The rules from which no chain of references leads to a cycle."""
        users: dict[str, list[str]] = {name: [] for name in self._rules}
        left = {}
        for name, rule in self._rules.items():
            needed = set(rule.references)
            left[name] = len(needed)
            for other in needed:
                users[other].append(name)
        found = [name for name, number in left.items() if not number]
        for name in found:  # grows
            for user in users[name]:
                left[user] -= 1
                if not left[user]:
                    found.append(user)
        return set(found)

    def _rule(self) -> None:
        at, name = self._at, self._name()
        rule = self._named(name, at)
        self._skip(_SPACE)
        if not self._text.startswith("::=", self._at):
            raise self._error("::= must follow a rule's name")
        self._at += 3
        self._skip(_LINES)
        rule.text, rule.references, rule.is_defined = [""], [], True
        self._alternatives(rule, 0)
        if self._at < len(self._text) and self._text[self._at] not in "\r\n":
            raise self._error("this is not part of a rule")
        self._skip(_LINES)

    def _alternatives(self, rule: _Rule, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise self._error("groups are nested too deeply")
        space = _LINES if depth else _SPACE
        while True:
            before = len(rule.text), rule.text[-1]
            self._sequence(rule, depth, space)
            if (len(rule.text), rule.text[-1]) == before:
                rule.text[-1] += '""'
            if self._next() != "|":
                return
            rule.text[-1] += " | "
            self._at += 1
            self._skip(_LINES)

    def _sequence(self, rule: _Rule, depth: int, space: re.Pattern[str]) -> None:
        while (character := self._next()) and (
            character in '"[(.' or _NAME.match(self._text, self._at)
        ):
            before = len(rule.text), rule.text[-1], len(rule.references)
            rule.text[-1] += " ("
            match character:
                case '"':
                    rule.text[-1] += self._literal()
                case "[":
                    rule.text[-1] += self._class()
                case ".":
                    rule.text[-1] += "/(?s:.)/"
                    self._at += 1
                case "(":
                    self._group(rule, depth)
                case _:
                    at, name = self._at, self._name()
                    self._named(name, at)
                    rule.references.append(name)
                    rule.text += [name, ""]
            self._skip(space)
            count = self._count()
            if count == "{0,0}":
                del rule.text[before[0] :], rule.references[before[2] :]
                rule.text[-1] = before[1] + ' ""'
            else:
                rule.text[-1] += f"){count}"
            self._skip(space)

    def _group(self, rule: _Rule, depth: int) -> None:
        at = self._at
        self._at += 1
        self._skip(_LINES)
        self._alternatives(rule, depth + 1)
        if self._next() != ")":
            raise self._error("the group has no end", at)
        self._at += 1

    def _count(self) -> str:
        character = self._next()
        if character and character in "*+?":
            self._at += 1
            return character
        if character != "{":
            return ""
        match = _COUNT.match(self._text, self._at)
        if match is None:
            raise self._error("the number of repetitions must be {n}, {n,} or {n,m}")
        least, comma, most = int(match[1]), match[2], match[3]
        if most is not None and int(most) < least:
            raise self._error("in a range of repetitions, the larger number must come last")
        self._at = match.end()
        if not comma:
            return f"{{{least},{least}}}"
        return f"{{{least},}}" if most is None else f"{{{least},{int(most)}}}"

    def _literal(self) -> str:
        at = self._at
        self._at += 1
        return literal("".join(self._characters('"', "the string", at)))

    def _class(self) -> str:
        at = self._at
        self._at += 1
        is_negated = self._next() == "^"
        self._at += is_negated
        parts = []
        characters = self._characters("]", "the class", at, ranges=True)
        for one in characters:
            first, last = one[0], one[-1]
            if first > last:
                raise self._error("the range is reversed")
            parts.append(f"{_point(first)}-{_point(last)}")
        if not parts and not is_negated:
            raise self._error("the class has no characters", at)
        if not parts:
            return "/(?s:.)/"
        return f"/[{'^' if is_negated else ''}{''.join(parts)}]/"

    def _characters(self, end: str, what: str, begin: int, ranges: bool = False) -> Iterator[str]:
        """Yields the characters up to `end`. With `ranges`, yields a range as its two ends."""
        while (character := self._next()) != end:
            if not character:
                raise self._error(f"{what} has no end", begin)
            one = self._character()
            if ranges and self._next() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                if not self._next():
                    raise self._error(f"{what} has no end", begin)
                one += self._character()
            yield one
        self._at += 1

    def _character(self) -> str:
        at = self._at
        if self._text[at] != "\\":
            self._at += 1
            return self._text[at]
        escape = self._text[at + 1 : at + 2]
        if escape in _DIGITS:
            digits = self._text[at + 2 : at + 2 + _DIGITS[escape]]
            if len(digits) == _DIGITS[escape] and re.fullmatch(r"[0-9a-fA-F]+", digits):
                point = int(digits, 16)
                if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
                    raise self._error(f"\\{escape}{digits} is not a character")
                self._at += 2 + len(digits)
                return chr(point)
        elif escape in _ESCAPES:
            self._at += 2
            return _ESCAPES[escape]
        raise self._error(f"\\{escape} is not an escape")

    def _named(self, name: str, at: int) -> _Rule:
        return self._rules.setdefault(name, _Rule(len(self._rules), at))

    def _name(self) -> str:
        match = _NAME.match(self._text, self._at)
        if match is None:
            raise self._error("a rule's name is missing here")
        self._at = match.end()
        return match[0]

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, space: re.Pattern[str]) -> None:
        match = space.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _error(self, what: str, at: int | None = None) -> InvalidJob:
        at = self._at if at is None else at
        line = self._text.count("\n", 0, at) + 1
        column = at - self._text.rfind("\n", 0, at)
        message = f"the grammar is not GBNF: line {line}, column {column}: {what}"
        return InvalidJob(message, "constraint")


def _point(character: str) -> str:
    return rf"\x{{{ord(character):x}}}"
