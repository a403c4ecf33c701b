"""Shared engines, closed in the end."""

import contextlib

import pytest

from tests.engine.hosts.house import House


@pytest.fixture
def house(model_path, tmp_path):
    with contextlib.ExitStack() as stack:

        def make(**config):
            one = House(model_path, tmp_path, **config)
            stack.callback(one.close)
            return one

        yield make


@pytest.fixture
def at(tmp_path):
    return f"unix:{tmp_path}/engine.sock"


@pytest.fixture
def shared(house):
    return house()
