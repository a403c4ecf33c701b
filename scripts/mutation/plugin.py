"""A plugin for pytest: runs the chosen tests in order, records them, and passes their names to
coverage.

It writes to the directory MUTATE_RUN, which may contain `chosen.json` (see `Chosen`).
"""

import contextlib
import json
import os
import pathlib
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TypedDict

import pytest

if TYPE_CHECKING:
    import coverage

RUN, CONTEXT = "MUTATE_RUN", "MUTATE_CONTEXT"
SAVE = 30  # seconds after which the data is saved, in case the process is killed


class Chosen(TypedDict):
    order: list[str]  # tests, or files, which stand for all of their tests
    aside: list[str]  # tests that don't run
    seconds: float  # after which no more tests start


class Record(TypedDict):
    """The record that is written after a test."""

    test: str
    outcome: str  # passed, failed or skipped
    seconds: float  # including its setup and teardown
    fixtures: list[str]  # contexts of the fixtures that it shares with other tests


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Recorder(pathlib.Path(os.environ[RUN])))


class _Recorder:
    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._shared: dict[pytest.FixtureDef[Any], str] = {}  # contexts, while they are set up
        self._number = 0  # of shared fixtures so far
        self._outcome, self._seconds = "passed", 0.0  # of the test that runs
        self._fixtures: list[str] = []
        self._saved = time.monotonic()
        self._began: float | None = None  # the first test
        self._chosen: Chosen | None = None
        if (path := self._directory / "chosen.json").exists():
            self._chosen = json.loads(path.read_text())

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._chosen:
            items[:] = _arranged(items, self._chosen)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        self._outcome, self._seconds, self._fixtures = "passed", 0.0, []
        self._began = self._began or time.monotonic()
        self._write({"starts": item.nodeid})
        with _named(item.nodeid):
            result = yield
        record = Record(
            test=item.nodeid,
            outcome=self._outcome,
            seconds=round(self._seconds, 2),
            fixtures=self._fixtures,
        )
        self._write(record)
        if time.monotonic() - self._saved > SAVE:
            _coverage(lambda current: current.save())
            self._saved = time.monotonic()
        ran = time.monotonic() - self._began
        if self._chosen and nextitem and ran > self._chosen["seconds"]:
            item.session.shouldstop = "the time is up"
            self._write({"cut": True})
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        if isinstance(item, pytest.Function):
            names = item._request.fixturenames
            self._fixtures = [c for each, c in self._shared.items() if each.argname in names]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds += report.duration
        if report.failed or (report.skipped and self._outcome == "passed"):
            self._outcome = report.outcome

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        """All tests that use a shared fixture cover what the fixture runs, including a server that
        it starts.
        """
        if fixturedef.scope == "function":
            return (yield)
        self._number += 1
        context = f"fixture {os.getpid()}-{self._number} {fixturedef.argname}"
        self._shared[fixturedef] = context
        with _named(context):
            return (yield)

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        self._shared.pop(fixturedef, None)

    def _write(self, line: Any) -> None:
        with (self._directory / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def _arranged(items: list[pytest.Item], chosen: Chosen) -> list[pytest.Item]:
    places = {name: place for place, name in enumerate(chosen["order"])}
    aside = {*chosen["aside"]}
    found: dict[pytest.Item, int] = {}
    first: dict[object, int] = {}  # place of a group
    for item in items:
        place = places.get(item.nodeid, places.get(_file(item)))
        if place is not None and item.nodeid not in aside:
            found[item] = place
            for group in _groups(item):
                first[group] = min(place, first.get(group, place))
    return sorted(found, key=lambda item: [*map(first.__getitem__, _groups(item)), found[item]])


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _groups(item: pytest.Item) -> list[object]:
    """Groups of tests that run one after another, so that shared fixtures are set up once."""
    shared = []
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        scopes = item.callspec._arg2scope
        for name, index in item.callspec.indices.items():
            if scopes[name].value != "function":
                shared.append((name, index))
    return [_file(item), (_file(item), *sorted(shared))]


@contextlib.contextmanager
def _named(context: str) -> Generator[None]:
    """Names the test in the coverage data of this process, and of the processes that it starts
    during the test.
    """
    before = os.environ.get(CONTEXT, "")
    os.environ[CONTEXT] = context
    _coverage(lambda current: current.switch_context(context))
    try:
        yield
    finally:
        os.environ[CONTEXT] = before
        _coverage(lambda current: current.switch_context(before))


def _coverage(act: Callable[["coverage.Coverage"], object]) -> None:
    if "COVERAGE_PROCESS_START" in os.environ:
        import coverage

        if (current := coverage.Coverage.current()) is not None:
            act(current)
