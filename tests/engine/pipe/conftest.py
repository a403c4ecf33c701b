"""Engines in a process of their own."""

import pytest


@pytest.fixture
def link():
    return "process"
