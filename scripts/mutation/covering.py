"""The map from functions to the tests that run them, made by one run of all tests under
coverage.
"""

import collections
import dataclasses
import gzip
import json
import pathlib
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping

from coverage.numbits import numbits_to_nums

from scripts.mutation import project
from scripts.mutation.plugin import CONTEXT, RUN, Record
from scripts.mutation.scopes import Scopes

CONFIG = """\
[run]
branch = False
parallel = True
include =
{include}
data_file = {run}/coverage
context = ${{{context}-}}
patch =
    _exit
    fork
sigterm = False
disable_warnings =
    already-imported
    couldnt-parse
    module-not-imported
    module-not-measured
    no-data-collected
concurrency = thread
"""


@dataclasses.dataclass(frozen=True)
class Map:
    """The tests that cover each function. `functions` has a set of tests for each
    `FILE::QUALIFIED_NAME`, as the bits of a number, in which the lowest bit stands for the first
    test.
    """

    revision: str
    tests: Mapping[str, float]  # test -> seconds; without those that failed or were skipped
    left_out: list[str]
    functions: Mapping[str, int]

    def covering(self, file: str, name: str) -> list[str]:
        """The tests that run a function, or any of the functions in a class or a module (whose name
        is "").
        """
        exact = f"{file}::{name}"
        inside = f"{exact}." if name else exact
        bits = 0
        for key, each in self.functions.items():
            if key == exact or key.startswith(inside):
                bits |= each
        return [test for place, test in enumerate(self.tests) if bits >> place & 1]

    def over(self, older: "Map") -> "Map":
        """Returns this map, with the data of an older map for other test files."""
        files = {file_of(test) for test in [*self.tests, *self.left_out]}
        kept = [place for place, test in enumerate(older.tests) if file_of(test) not in files]
        names = list(older.tests)
        functions = dict(self.functions)
        for key, bits in older.functions.items():
            for new, place in enumerate(kept, len(self.tests)):
                if bits >> place & 1:
                    functions[key] = functions.get(key, 0) | 1 << new
        return Map(
            self.revision,
            {**self.tests, **{names[place]: older.tests[names[place]] for place in kept}},
            self.left_out + [test for test in older.left_out if file_of(test) not in files],
            functions,
        )

    def write(self, path: pathlib.Path) -> None:
        functions = {name: f"{bits:x}" for name, bits in self.functions.items()}
        content = json.dumps({**vars(self), "functions": functions})
        path.parent.mkdir(exist_ok=True)
        path.with_suffix(".new").write_bytes(gzip.compress(content.encode(), mtime=0))
        path.with_suffix(".new").replace(path)

    @classmethod
    def read(cls, path: pathlib.Path) -> "Map":
        """Reads the map from a file. Returns an empty map if there is no such file."""
        if not path.exists():
            return cls("", {}, [], {})
        content = json.loads(gzip.decompress(path.read_bytes()))
        functions = {name: int(bits, 16) for name, bits in content.pop("functions").items()}
        return cls(**content, functions=functions)


def file_of(test: str) -> str:
    return test.partition("::")[0]


def make(root: pathlib.Path, jobs: int, arguments: Iterable[str] = ()) -> Map:
    """Runs all tests, or the tests in pytest's `arguments`, in a copy of the project."""
    with tempfile.TemporaryDirectory(prefix="mutate-") as place:
        revision = project.revision(root)
        copy = project.Copy(root, pathlib.Path(place, "copy"))
        run = pathlib.Path(place, "run")
        run.mkdir()
        include = "\n".join(f"    {copy.path.resolve()}/{each}/*" for each in project.CODE)
        config = run / "coveragerc"
        config.write_text(CONFIG.format(include=include, run=run, context=CONTEXT))
        ended = copy.run(
            *project.PYTEST_COMMAND,
            *(["-n", str(jobs), "--dist", "loadfile"] if jobs > 1 else []),
            *arguments,
            hangs=lambda: False,
            **{RUN: str(run), "COVERAGE_PROCESS_START": str(config)},
        )
        print(ended.output[-3000:])
        records = list(read_records(run))
        if not records:
            raise SystemExit("mutate: no test ran; see above")
        return _map(revision, records, _contexts(run, copy.path.resolve()))


def read_records(run: pathlib.Path) -> Iterator[Record]:
    for path in sorted(run.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if "test" in record:
                yield record


def _map(revision: str, records: list[Record], contexts: Mapping[str, set[str]]) -> Map:
    passed = sorted((r for r in records if r["outcome"] == "passed"), key=lambda r: r["test"])
    bits: dict[str, int] = collections.defaultdict(int)  # of a context
    for place, record in enumerate(passed):
        for context in {record["test"], *record["fixtures"]}:
            bits[context] |= 1 << place
    functions = {}
    for name, found in sorted(contexts.items()):
        number = 0
        for context in found:
            number |= bits[context]
        functions[name] = number
    return Map(
        revision,
        {record["test"]: record["seconds"] for record in passed},
        sorted({record["test"] for record in records if record["outcome"] != "passed"}),
        functions,
    )


def _contexts(run: pathlib.Path, root: pathlib.Path) -> dict[str, set[str]]:
    """The tests that run each function, from the data of all processes.

    Code that runs only on import says nothing about a test, because a server imports everything.
    The lines of modules and classes themselves are therefore left out.
    """
    scopes = {name: Scopes(source) for name, source in project.sources(root).items()}
    functions = {name: each.functions for name, each in scopes.items()}
    found: dict[str, set[str]] = collections.defaultdict(set)
    for path in run.glob("coverage.*"):
        for name, context, numbits in _rows(path, root):
            if name in scopes:
                lines = numbits_to_nums(numbits)
                for scope in {scopes[name].at(line) for line in lines} & functions[name]:
                    found[f"{name}::{scope}"].add(context)
    return found


def _rows(path: pathlib.Path, root: pathlib.Path) -> Iterator[tuple[str, str, bytes]]:
    """Yields file, context and lines (see
    https://coverage.readthedocs.io/en/latest/dbschema.html).
    """
    select = (
        "SELECT file.path, context.context, line_bits.numbits FROM line_bits"
        " JOIN file ON file.id = file_id JOIN context ON context.id = context_id"
    )
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        for name, context, numbits in connection.execute(select):
            yield name.removeprefix(f"{root}/"), context, numbits
    except sqlite3.DatabaseError:
        pass  # of a process that was killed while it wrote
    finally:
        connection.close()
