"""Modules of the page at `/` that need no document, in Node: see tests/node/page.mjs."""

import re

import pytest

from tests.conftest import ROOT, run_node

SCRIPT = ROOT / "tests/node/page.mjs"


@pytest.fixture(scope="module")
def failures():
    """By test of the script: what failed, or None."""
    return run_node(SCRIPT)


@pytest.fixture
def outcome(failures):
    """The outcome of the tests whose names begin so."""
    return lambda name: [failures[each] for each in failures if each.startswith(name)]


@pytest.mark.parametrize("name", re.findall(r'test\(["`](.*?)(?:\$|["`],)', SCRIPT.read_text()))
def test_the_page_does_what_its_script_says(outcome, name):
    found = outcome(name)
    assert found and not any(found), "\n".join(filter(None, found))
