"""Fixtures for pytest, available wherever Switchyard is installed."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def fake_switchyard() -> Iterator[Any]:
    """`fake_switchyard(app, answers)` works like `switchyard.testing.fake`, and is closed when the
    test ends.
    """
    from switchyard.testing import faking  # only on use: it imports Flask

    with faking() as fake:
        yield fake
