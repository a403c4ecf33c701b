"""Engines fail, come and go under load, on three boxes. Each token of each stream is checked."""

import pytest

from tests.nodes.cluster import Cluster
from tests.nodes.load import Load, count
from tests.nodes.scenarios import SCENARIOS

pytestmark = pytest.mark.nodes


@pytest.fixture(scope="module")
def cluster(boxes, tmp_path_factory, model_path):
    one = Cluster(boxes, tmp_path_factory.mktemp("cluster"), model_path)
    yield one
    assert one.close() == [0] * 5


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
def test_a_failure_costs_what_is_promised(cluster, scenario):
    cluster.wait_until_served(1, 2, 3)
    loads = [Load(server.url, 2000 * i) for i, server in cluster.servers.items()]
    try:
        cluster.wait_until_busy(3)
        scenario(cluster)
        cluster.wait_until_served(1, 2, 3)
    finally:
        for load in loads:
            load.end()
    seen = count(loads)
    assert seen["wrong"] == seen["lost"] == 0 < seen["whole"], seen
    assert bool(seen["told"]) == SCENARIOS[scenario], seen
