"""exllamav2 on a CPU."""

import pytest

from switchyard.engine.backends.exl2 import cpu


@pytest.fixture(scope="module", autouse=True)
def _exllamav2():
    cpu.install()
