"""Engines in their own process."""

import pytest


@pytest.fixture
def link():
    return "process"
