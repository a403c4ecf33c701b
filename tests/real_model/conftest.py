"""The real model's directory, a server of it, and transformers' own."""

import os

import pytest

from tests.real_model.reference import Reference
from tests.real_model.served import Server


@pytest.fixture(scope="session")
def path():
    if not (found := os.environ.get("TESTS_REAL_MODEL")):
        pytest.skip("TESTS_REAL_MODEL names no model: see scripts/test-real-model")
    return found


@pytest.fixture(scope="session")
def reference(path):
    return Reference(path)


@pytest.fixture(scope="session")
def serve():
    """Makes servers, one at a time."""
    opened = []

    def serve(path, **settings):
        while opened:
            opened.pop().close()
        opened.append(Server(path, **settings))
        return opened[-1]

    yield serve
    while opened:
        opened.pop().close()
