"""The shape of the code: small files and functions, one name for one thing."""

import ast
import pathlib
from collections import Counter

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PARTS = ["app", "engine"]

MAX_FILE = 300  # lines
MAX_TESTS = 400
MAX_FUNCTION = 50
MIRRORED = {"sample_basic"}  # has the signature of a function in C++, which the library calls


def files(part):
    return sorted((ROOT / part).rglob("*.py"))


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def num_lines(path):
    return len(path.read_text().splitlines())


def classes(path):
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


@pytest.mark.parametrize("part", PARTS)
def test_no_file_is_long(part):
    lengths = {name_of(path): num_lines(path) for path in files(part)}
    assert {name: length for name, length in lengths.items() if length > MAX_FILE} == {}


def test_no_file_of_tests_is_long():
    paths = [path for path in files("tests") if path.name.startswith("test_")]
    long = {name_of(path) for path in paths if num_lines(path) > MAX_TESTS}
    assert long == set()


@pytest.mark.parametrize("part", PARTS)
def test_a_function_fits_a_screen(part):
    long = [
        f"{name_of(path)}: {node.name}"
        for path in files(part)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno >= MAX_FUNCTION
        and node.name not in MIRRORED
    ]
    assert long == []


def test_no_two_public_classes_have_one_name():
    found = Counter(name for part in PARTS for path in files(part) for name in classes(path))
    assert {name: number for name, number in found.items() if number > 1} == {}
