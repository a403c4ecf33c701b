"""The tables of docs/parameters.md: as the code has it, and each row seen by a test."""

import ast
import itertools
import pathlib

import pytest

from scripts import parameter_table
from scripts.parameter_table import Row

TESTS = pathlib.Path(__file__).parent.parent


@pytest.fixture
def api(make_client):
    return make_client().get("/openapi.json").json


def test_the_tables_are_as_the_code_has_them(api):
    assert parameter_table.PAGE.read_text() == parameter_table.text(api), (
        "run .venv/bin/python scripts/parameter_table.py"
    )


def test_each_parameter_is_described(api):
    rows = [row for row in parameter_table.rows(api) if isinstance(row, Row)]
    assert [row.name for row in rows if not row.description.endswith(".")] == []


def claims():
    """Names, and names with a path, of which a test says that it sees their effect."""
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.parameter":
                given = " ".join(ast.literal_eval(argument) for argument in node.args).split()
                paths = [one for one in given if one.startswith("/")]
                names = [one for one in given if one not in paths]
                yield from itertools.product(names, paths or [None])


def test_each_parameter_has_a_test_that_sees_its_effect(api):
    """Which says so by `@pytest.mark.parameter`."""
    rows = {row: paths for row, paths in parameter_table.rows(api).items() if isinstance(row, Row)}
    names = [row.name for row in rows]
    claimed = set(claims())
    unseen = [
        (row.name, paths)
        for row, paths in rows.items()
        if not claimed & {(row.name, path) for path in paths}
        and not (names.count(row.name) == 1 and (row.name, None) in claimed)
    ]
    assert unseen == []
    known = {(row.name, path) for row, paths in rows.items() for path in (*paths, None)}
    assert claimed - known == set(), "there is no such parameter"
