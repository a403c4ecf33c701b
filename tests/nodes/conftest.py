"""Three boxes on one network."""

import os

import pytest

from tests.live.warm import WARM
from tests.nodes.boxes import network


@pytest.fixture(scope="module")
def boxes(tmp_path_factory):
    WARM.start()  # outside
    try:
        with network(3, tmp_path_factory.mktemp("boxes")) as made:
            yield made
    except PermissionError as refusal:
        if os.environ.get("SWITCHYARD_NAMESPACES") == "required":
            raise
        pytest.skip(f"no network namespaces here: {refusal}")
