"""Finds the tests that should notice a mutant: those that cover its function. Tests that have
noticed another mutant in the same file run first, then the fastest tests.
"""

import collections
import dataclasses
import pathlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from scripts.mutation import project
from scripts.mutation.covering import Map, file_of
from scripts.mutation.mutants import Mutant

if TYPE_CHECKING:
    from scripts.mutation.trial import Result  # which imports this module

FIRST = 20.0  # seconds of tests that run before others are even collected; then twice that, ...
PROVEN = 8  # tests that have noticed the most other mutants


@dataclasses.dataclass(frozen=True)
class Choice:
    how: str  # covering, around, importing or folder
    batches: list[list[str]]  # of tests, or of whole test files


class Chooser:
    def __init__(
        self, root: pathlib.Path, covered: Map, found: "Mapping[str, Result] | None" = None
    ) -> None:
        """`found`: the results so far, to which more may be added."""
        self.covered = covered
        self._found = {} if found is None else found
        self._texts = {name: (root / name).read_text() for name in project.tests(root)}
        known = {file_of(test) for test in [*covered.tests, *covered.left_out]}
        self._unknown = self._texts.keys() - known

    def __call__(self, mutant: Mutant) -> Choice:
        importing = self._importing(mutant.file)
        for how, name in (("covering", mutant.scope), *_around(mutant.scope)):
            tests = self.covered.covering(mutant.file, name)
            if found := [test for test in tests if file_of(test) in self._texts]:
                proven = self._proven(mutant.file, found)
                rest = self._batches([test for test in found if test not in proven], importing)
                return Choice(how, [batch for batch in (proven, *rest) if batch])
        if importing:
            return Choice("importing", [sorted(importing)])
        return Choice("folder", [self._folder(mutant.file)])

    def _proven(self, file: str, tests: list[str]) -> list[str]:
        noticed = collections.Counter(
            result.detail for result in [*self._found.values()] if result.mutant.startswith(file)
        )
        return [test for test, _ in noticed.most_common() if test in {*tests}][:PROVEN]

    def _batches(self, tests: list[str], importing: set[str]) -> list[list[str]]:
        """Returns the tests file by file, because the tests in a file may share a server."""
        seconds = self.covered.tests
        files = collections.defaultdict(list)
        for test in sorted(tests, key=lambda test: (seconds[test], test)):
            files[file_of(test)].append(test)

        def rank(name: str) -> tuple[bool, float, str]:
            return name not in importing, sum(seconds[test] for test in files[name]), name

        batches = [sorted(importing & self._unknown)]
        limit, total = FIRST, 0.0
        for name in sorted(files, key=rank):
            for test in files[name]:
                if total >= limit:
                    batches.append([])
                    limit, total = 2 * limit, 0.0
                batches[-1].append(test)
                total += seconds[test]
        return batches

    def _importing(self, file: str) -> set[str]:
        """Returns the test files that import a module."""
        path = file if file.startswith("switchyard/") else f"switchyard/{file}"
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        parent, _, name = module.rpartition(".")
        wanted = re.compile(
            rf"^\s*(from {re.escape(module)} import|import {re.escape(module)}\b"
            rf"|from {re.escape(parent)} import [^\n]*\b{name}\b)",
            re.MULTILINE,
        )
        return {name for name, text in self._texts.items() if wanted.search(text)}

    def _folder(self, file: str) -> list[str]:
        """The tests in `tests/app` for `app`, in `tests/cli` for `switchyard/cli`, and otherwise
        all tests.
        """
        for part in reversed(file.split("/")[:-1]):
            if found := [name for name in self._texts if name.startswith(f"tests/{part}/")]:
                return found
        return list(self._texts)


def _around(scope: str) -> list[tuple[str, str]]:
    """Yields the enclosing functions and classes, then the module (the empty name)."""
    parts = scope.split(".") if scope else []
    return [("around", ".".join(parts[:number])) for number in reversed(range(len(parts)))]
