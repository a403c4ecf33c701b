"""The shape of the code: functions that fit a screen, one name for one thing."""

import ast
import pathlib
from collections import Counter

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PARTS = ["app", "engine"]

MAX_FUNCTION = 50  # lines


def files(part):
    return sorted((ROOT / part).rglob("*.py"))


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def classes(path):
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


@pytest.mark.parametrize("part", PARTS)
def test_a_function_fits_a_screen(part):
    long = [
        f"{name_of(path)}: {node.name}"
        for path in files(part)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno >= MAX_FUNCTION
    ]
    assert long == []


def test_no_two_public_classes_have_one_name():
    found = Counter(name for part in PARTS for path in files(part) for name in classes(path))
    assert {name: number for name, number in found.items() if number > 1} == {}
