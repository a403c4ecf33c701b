"""One mutant's trial, which checks types, then runs the tests that cover the mutant, then repeats a
failed test.
"""

import dataclasses
import json
import pathlib
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping

from scripts.mutation import project
from scripts.mutation.choice import Chooser
from scripts.mutation.covering import file_of
from scripts.mutation.mutants import Mutant
from scripts.mutation.plugin import RUN, Chosen

# Seconds to collect tests. A test may take LEAST seconds plus SLOWER times what it took before.
START, LEAST, SLOWER = 300, 60, 10
NO_TESTS = 5  # pytest's exit status
TYPES, TEST, TIMEOUT, SURVIVED, ERROR = "by types", "by a test", "by timeout", "survived", "error"


class Stopped(Exception):
    """The tool was asked to stop."""


@dataclasses.dataclass(frozen=True)
class Result:
    mutant: str
    place: str  # file and line
    outcome: str
    detail: str  # mypy's line, the test that failed, or why it is an error
    tests: str  # how they were chosen, and how many ran
    is_cut: bool  # whether some of them didn't run
    false_killers: list[str]  # tests that also fail without the mutant
    seconds: float


@dataclasses.dataclass
class _Run:
    """The outcome of one run of pytest."""

    ended: project.Ended
    passed: list[str]
    failed: str  # the test that failed, hung or ended the process; or empty
    seconds: float  # of its tests
    is_cut: bool  # before all tests had run


@dataclasses.dataclass
class _Verdict:
    """The verdict on one mutant so far."""

    outcome: str = SURVIVED
    detail: str = ""
    is_cut: bool = False
    ran: list[str] = dataclasses.field(default_factory=list)
    false_killers: list[str] = dataclasses.field(default_factory=list)


class Trials:
    """Tries mutants on any number of threads, each with its own copy of the project."""

    def __init__(self, choose: Chooser, seconds: float, stop: threading.Event) -> None:
        """`seconds`: the maximum time of tests for one mutant."""
        self._choose, self._seconds, self._stop = choose, seconds, stop
        self._known = {*choose.covered.tests, *choose.covered.left_out}

    def types(self, copy: project.Copy) -> str:
        """mypy's first complaint, or an empty string if there is none."""
        ended = copy.run("-m", "mypy", hangs=self._stop.is_set)
        if ended.status is None:
            raise Stopped
        if ended.status == 0:
            return ""
        lines = [line for line in ended.output.splitlines() if ": error: " in line]
        if not lines:
            return ended.output.strip() or "mypy failed"
        # Where the mutant has removed an error, the comment that ignores it remains.
        return next((line for line in lines if not line.endswith("[unused-ignore]")), "")

    def __call__(self, copy: project.Copy, mutant: Mutant) -> Result:
        started = time.monotonic()
        changed = mutant.planted((copy.path / mutant.file).read_bytes())
        choice, verdict = self._choose(mutant), _Verdict()
        with copy.planted(mutant.file, changed):
            verdict.detail = self.types(copy)
        if verdict.detail:
            verdict.outcome = TYPES
        else:
            self._by_tests(copy, mutant.file, changed, choice.batches, verdict)
        return Result(
            mutant.name,
            f"{mutant.file}:{mutant.lines[0]}",
            verdict.outcome,
            verdict.detail,
            f"{choice.how}, {len(verdict.ran)} ran",
            verdict.is_cut,
            verdict.false_killers,
            round(time.monotonic() - started, 1),
        )

    def _by_tests(
        self,
        copy: project.Copy,
        file: str,
        changed: bytes,
        batches: list[list[str]],
        verdict: _Verdict,
    ) -> None:
        left = self._seconds
        for batch in batches:
            # What the map doesn't know is new, and runs as well.
            order = [*batch, *dict.fromkeys(map(file_of, batch))]
            others = {t for t in self._known.difference(batch) if file_of(t) not in batch}
            run = None
            while run is None or run.failed:
                if left <= 0:
                    verdict.is_cut = True
                    return
                chosen = Chosen(order=order, aside=[*others, *verdict.ran], seconds=left)
                with copy.planted(file, changed):
                    run = self._run(copy, chosen)
                left -= run.seconds
                verdict.ran += run.passed
                if run.failed:
                    verdict.ran.append(run.failed)
                    if self._passes(copy, run.failed):
                        verdict.outcome = TIMEOUT if run.ended.status is None else TEST
                        verdict.detail = run.failed
                        return
                    verdict.false_killers.append(run.failed)
            if run.is_cut:
                verdict.is_cut = True
                return
            if run.ended.status not in (0, NO_TESTS):
                self._without_tests(copy, order, run, verdict)
                return

    def _passes(self, copy: project.Copy, test: str) -> bool:
        """Whether the test passes by itself, on the unchanged code."""
        run = self._run(copy, Chosen(order=[test], aside=[], seconds=START))
        return bool(run.passed and not run.failed)

    def _without_tests(
        self, copy: project.Copy, order: list[str], run: _Run, verdict: _Verdict
    ) -> None:
        """The verdict if pytest fails, but no test fails. If pytest can collect the tests without
        the mutant, the mutant is noticed.
        """
        chosen = Chosen(order=order, aside=[], seconds=START)
        if self._run(copy, chosen, "--collect-only").ended.status == 0:
            verdict.outcome = TIMEOUT if run.ended.status is None else TEST
            verdict.detail = "pytest itself, before any test"
        else:
            verdict.outcome, verdict.detail = ERROR, run.ended.output[-500:]

    def _run(self, copy: project.Copy, chosen: Chosen, *options: str) -> _Run:
        directory = pathlib.Path(tempfile.mkdtemp(prefix="run-", dir=copy.path.parent))
        try:
            (directory / "chosen.json").write_text(json.dumps(chosen))
            files = dict.fromkeys(map(file_of, chosen["order"]))
            ended = copy.run(
                *project.PYTEST_COMMAND,
                *("-x", "--tb=line", *options, *files),
                hangs=_Watch(directory, self._choose.covered.tests, self._stop),
                **{RUN: str(directory)},
            )
            if self._stop.is_set():
                raise Stopped
            return _read(directory, ended)
        finally:
            shutil.rmtree(directory)


class _Watch:
    """Detects that a test takes far longer than before. Called from time to time."""

    def __init__(
        self, directory: pathlib.Path, seconds: Mapping[str, float], stop: threading.Event
    ) -> None:
        self._directory, self._seconds, self._stop = directory, seconds, stop
        self._last, self._since = "", time.monotonic()

    def __call__(self) -> bool:
        lines = _lines(self._directory)
        last = lines[-1] if lines else ""
        if last != self._last:
            self._last, self._since = last, time.monotonic()
        allowed = float(START)
        if last and (test := json.loads(last).get("starts")):
            allowed = LEAST + SLOWER * self._seconds.get(test, 10)
        return self._stop.is_set() or time.monotonic() - self._since > allowed


def _lines(directory: pathlib.Path) -> list[str]:
    """Returns the complete lines."""
    texts = [path.read_text() for path in sorted(directory.glob("*.jsonl"))]
    return [line for text in texts for line in text.splitlines(True) if line.endswith("\n")]


def _read(directory: pathlib.Path, ended: project.Ended) -> _Run:
    run = _Run(ended, [], "", 0.0, False)
    for line in map(json.loads, _lines(directory)):
        if "cut" in line:
            run.is_cut = True
        elif "starts" in line:
            run.failed = line["starts"]  # unless it ends
        else:
            run.seconds += line["seconds"]
            if line["outcome"] == "failed":
                break
            run.passed.append(line["test"])
            run.failed = ""
    return run
