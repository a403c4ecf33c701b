"""What tests of EXL3 models share."""

import pytest

from tests.engine.exl3 import stand_in


@pytest.fixture(scope="module", autouse=True)
def _no_stand_in_is_left():
    yield
    stand_in.remove()
