"""Clients that leave or stop, at every point of a request's life, over the real generator."""

import pytest

from tests.faults import matrix
from tests.faults.conftest import SLOWED
from tests.live.conftest import shared_server

slowed = shared_server(SLOWED, **matrix.SETTINGS)


@pytest.mark.parametrize("way", matrix.WAYS)
@pytest.mark.parametrize("streams", [True, False], ids=["streaming", "not"])
@pytest.mark.parametrize("phase", matrix.PHASES)
def test_a_client_that_fails_holds_nothing(slowed, phase, streams, way):
    matrix.run(slowed, phase, streams, way, patience=4)  # of the ten seconds that it would run
