"""Houses of replicas, closed in the end."""

import pytest

from switchyard.engine.messages import Loaded
from tests.engine.replicas.house import INFO, House


@pytest.fixture
def make_house():
    def make(number=2, is_loaded=True, **config):
        house = House(number, **config)
        for link in house.links if is_loaded else ():
            link.tell(Loaded(INFO))
        return house

    return make
