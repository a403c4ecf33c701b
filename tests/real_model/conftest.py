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


@pytest.fixture
def serve():
    """Makes servers, which end with the test."""
    opened = []

    def serve(path, **settings):
        opened.append(Server(path, **settings))
        return opened[-1]

    yield serve
    while opened:
        opened.pop().close()
