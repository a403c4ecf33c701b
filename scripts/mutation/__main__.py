"""The command line of scripts/mutate."""

import argparse
import concurrent.futures
import itertools
import pathlib
import queue
import re
import signal
import sys
import tempfile
import threading
from collections import Counter

from scripts.mutation import covering, project
from scripts.mutation.choice import Chooser
from scripts.mutation.mutants import Mutant, is_python, mutants
from scripts.mutation.results import Results, report, short
from scripts.mutation.trial import SURVIVED, Stopped, Trials

FOLDER = ".mutate"
SECONDS = 300


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/mutate",
        description="Make small changes to the code, one at a time, and run the tests that should"
        " notice. See docs/development.md.",
    )
    add = parser.add_argument
    add("--sample", type=int, metavar="N", help="try N mutants, drawn at random")
    add("--seed", type=int, default=0, metavar="N", help="seed of the sample (default: 0)")
    add(
        "--changed",
        nargs="?",
        const="HEAD",
        metavar="REV",
        help="only lines that differ from a revision (default: HEAD)",
    )
    add("--only", default="", metavar="TEXT", help="only mutants whose line contains this text")
    add("--list", action="store_true", help="only print the mutants, or the number of each kind")
    add(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="number of mutants at a time, each in its own copy (default: 1)",
    )
    add(
        "--seconds",
        type=float,
        default=SECONDS,
        metavar="S",
        help=f"seconds of tests before a mutant counts as survived (default: {SECONDS})",
    )
    add(
        "--map",
        nargs=argparse.REMAINDER,
        metavar="PYTEST_ARGUMENT",
        help="record which tests run which function, in one run of all tests or of the given tests",
    )
    return parser


def main(arguments: list[str], root: pathlib.Path) -> int:
    """Returns 1 if a mutant survives."""
    options = parser().parse_args(arguments)
    path = root / FOLDER / "map.json.gz"
    if options.map is not None:
        made = covering.make(root, options.jobs, options.map)
        whole = made.over(covering.Map.read(path)) if options.map else made
        whole.write(path)
        print(
            f"mutate: {len(made.tests)} tests, and {len(made.left_out)} that failed or were skipped"
        )
        return 0
    chosen = choose(root, options)
    if options.list:
        kinds = Counter(re.sub(r"^.*?::\S+ (.*?): .*", r"\1", m.name, flags=re.S) for m in chosen)
        lines = [f"{number:6} {kind}" for kind, number in kinds.most_common()]
        print(*(map(str, chosen) if len(chosen) <= 1000 else lines), f"{len(chosen):6}", sep="\n")
        return 0
    results = Results(root / FOLDER / f"{_name(root, options)}.jsonl")
    try_all(root, options, [m for m in chosen if m.name not in results.found], results)
    found = [results.found[m.name] for m in chosen if m.name in results.found]
    print(f"\n{report(found, len(chosen))}")
    return int(any(result.outcome == SURVIVED for result in found))


def choose(root: pathlib.Path, options: argparse.Namespace) -> list[Mutant]:
    """Chooses mutants by rank, so that a sample begins with the mutants of a smaller sample."""
    sources = project.sources(root)
    found = [m for name, source in sources.items() for m in mutants(name, source)]
    if options.only:
        found = [m for m in found if options.only in str(m)]
    if options.changed:
        lines = project.changed(root, options.changed)
        found = [
            m for m in found if lines.get(m.file, set()) & {*range(m.lines[0], m.lines[1] + 1)}
        ]
    found.sort(key=lambda mutant: mutant.rank(options.seed))
    if options.list and not options.sample:
        return found  # compiling thousands takes minutes
    valid = (m for m in found if is_python(m, sources[m.file]))
    return list(itertools.islice(valid, options.sample))


def _name(root: pathlib.Path, options: argparse.Namespace) -> str:
    """Returns a name for each revision and choice of mutants."""
    parts = [project.revision(root), f"seed{options.seed}", f"sample{options.sample or 'all'}"]
    if options.changed:
        parts.append("changed-" + project.git(root, "rev-parse", options.changed)[:10])
    if options.only:
        parts.append("only-" + re.sub(r"\W+", "-", options.only))
    if options.seconds != SECONDS:
        parts.append(f"seconds{options.seconds:g}")
    return "-".join(parts)


def try_all(
    root: pathlib.Path, options: argparse.Namespace, left: list[Mutant], results: Results
) -> None:
    covered = covering.Map.read(root / FOLDER / "map.json.gz")
    if not covered.tests:
        print("mutate: there is no map of tests, so the tests that import a module run. See --map")
    stop = threading.Event()
    trials = Trials(Chooser(root, covered, results.found), options.seconds, stop)
    with tempfile.TemporaryDirectory(prefix="mutate-") as place:
        copies: queue.SimpleQueue[project.Copy] = queue.SimpleQueue()
        for number in range(min(options.jobs, len(left))):
            copies.put(copy := project.Copy(root, pathlib.Path(place, str(number))))
            if complaint := trials.types(copy):
                raise SystemExit(f"mutate: the unchanged code has a type error: {complaint}")

        def attempt(mutant: Mutant) -> None:
            copy = copies.get()
            try:
                results.add(result := trials(copy, mutant))
                print(short(result), flush=True)
            finally:
                copies.put(copy)

        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            futures = [pool.submit(attempt, mutant) for mutant in left]
            try:
                for future in concurrent.futures.as_completed(futures):
                    future.result()
            except (KeyboardInterrupt, Stopped):
                print("mutate: stopped")
            finally:
                stop.set()
                pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:], project.TOOL))
