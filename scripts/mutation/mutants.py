"""Mutants, which are small changes to a file's code of the kinds that people make by mistake."""

import ast
import dataclasses
import hashlib
import re
from collections.abc import Iterator

from scripts.mutation.changes import changes, is_log
from scripts.mutation.scopes import SCOPES

SAME = re.compile(rb"# same: \S")  # with a reason: no change of this line makes a difference


@dataclasses.dataclass(frozen=True)
class Mutant:
    """`name` is unique in a revision and contains no line number, so it stays the same as long as
    its function does.
    """

    name: str
    file: str
    scope: str  # qualified name of the function or class; empty in the module
    lines: tuple[int, int]  # the first and last line that it replaces
    place: tuple[int, int]  # in bytes
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.lines[0]} {self.name.removeprefix(f'{self.file}::')}"

    def planted(self, source: bytes) -> bytes:
        start, end = self.place
        return source[:start] + self.after.encode() + source[end:]

    def rank(self, seed: int) -> str:
        """The mutant's rank in samples, which depends only on its name, so that larger samples
        contain smaller samples.
        """
        return hashlib.sha256(f"{seed} {self.name}".encode()).hexdigest()


def mutants(file: str, source: bytes) -> list[Mutant]:
    """All mutants of a file. Python itself may refuse some (see `is_python`)."""
    return list(_Finder(file, source).found.values())


def is_python(mutant: Mutant, source: bytes) -> bool:
    """Whether the mutant compiles, and to different code."""
    try:
        changed = ast.parse(mutant.planted(source))
        compile(changed, mutant.file, "exec")
    except (SyntaxError, ValueError):
        return False
    return ast.dump(changed) != ast.dump(ast.parse(source))


class _Finder:
    def __init__(self, file: str, source: bytes) -> None:
        self._file, self._source = file, source
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self.found: dict[str, Mutant] = {}
        self._visit(ast.parse(source), "")

    def _visit(self, node: ast.AST, scope: str) -> None:
        if isinstance(node, SCOPES):
            scope = f"{scope}.{node.name}" if scope else node.name
        for change in changes(node):
            self._add(change.kind, change.first, change.last, change.after, scope)
        for child in _children(node):
            self._visit(child, scope)

    def _add(self, kind: str, first: ast.AST, last: ast.AST, after: str, scope: str) -> None:
        start, end = self._place(first)[0], self._place(last)[1]
        lines = self._line(first), self._line(last, "end_lineno")
        before = " ".join(self._source[start:end].decode().split())
        if before == after or SAME.search(self._lines[lines[0] - 1]):
            return
        name = f"{self._file}::{scope or 'module'} {kind}: {_short(before)} -> {_short(after)}"
        while name in self.found:  # the same change of the same text, elsewhere in the function
            base, _, number = name.partition(" #")
            name = f"{base} #{int(number or 1) + 1}"
        self.found[name] = Mutant(name, self._file, scope, lines, (start, end), after)

    def _place(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt | ast.keyword)
        start = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        return start, end

    def _line(self, node: ast.AST, which: str = "lineno") -> int:
        line: int = getattr(node, which)
        return line


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the children, except annotations, decorators, code that is only for types or logs, and
    code that can't run.
    """
    match node:
        case ast.Assert() | ast.JoinedStr():  # before 3.12, parts of the latter have no places
            return
        case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=orelse):
            yield from orelse
            return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not is_log(child):
                yield child


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:40]}…{text[-19:]}"
