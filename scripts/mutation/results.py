"""Results of trials, which are written to a file as they arrive, and reported at the end."""

import collections
import dataclasses
import json
import pathlib
import threading

from scripts.mutation.trial import ERROR, SURVIVED, TEST, TIMEOUT, TYPES, Result

ORDER = (TYPES, TEST, TIMEOUT, SURVIVED, ERROR)


class Results:
    """The results for one sample of one revision, each a line of JSON. Can be used on any
    thread.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self.found: dict[str, Result] = {}
        if path.exists():
            lines = path.read_text().splitlines(keepends=True)
            whole = [line for line in lines if line.endswith("\n")]
            if whole != lines:  # the last one was being written when the tool was killed
                path.write_text("".join(whole))
            for line in whole:
                result = Result(**json.loads(line))
                self.found[result.mutant] = result

    def add(self, result: Result) -> None:
        with self._lock:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write(json.dumps(dataclasses.asdict(result)) + "\n")
            self.found[result.mutant] = result


def report(found: list[Result], wanted: int) -> str:
    """Prints counts, then each survivor and each test that also failed without the mutant."""
    counts = collections.Counter(result.outcome for result in found)
    noticed = sum(counts[outcome] for outcome in (TYPES, TEST, TIMEOUT))
    seconds = sum(result.seconds for result in found)
    lines = [
        f"{noticed} of {len(found)} mutants noticed, in {seconds / 60:.0f} minutes:"
        f" {', '.join(f'{counts[outcome]} {outcome}' for outcome in ORDER if counts[outcome])}"
    ]
    if len(found) < wanted:
        lines.append(f"{wanted - len(found)} are left; run the same command again to continue")
    lines += [f"\n{short(result)}" for result in found if result.outcome == SURVIVED]
    lines += [f"\n{short(result)}\n{result.detail}" for result in found if result.outcome == ERROR]
    false = collections.Counter(test for result in found for test in result.false_killers)
    if false:
        lines.append("\nFailed with a mutant, but also without it when run alone:")
        lines += [f"{number} x {test}" for test, number in sorted(false.items())]
    return "\n".join(lines)


def short(result: Result) -> str:
    _, _, name = result.mutant.partition("::")
    remark = f"  {result.detail.splitlines()[0]}" if result.detail else ""
    if result.outcome == SURVIVED:
        remark = f"  tests: {result.tests}{', not all of them: the time was up' * result.is_cut}"
    return f"{result.outcome}: {result.place} {name} ({result.seconds:.0f} s)\n{remark}".rstrip()
