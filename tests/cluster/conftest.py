"""One cluster for all tests with Ray, in the order of their files."""

import os
import subprocess

import pytest

from tests.cluster.field import Field
from tests.cluster.machines import refusal


@pytest.fixture(scope="session")
def field(tmp_path_factory):
    if reason := refusal():
        message = f"no network namespaces here ({reason})"
        if os.environ.get("SWITCHYARD_NAMESPACES") == "required":
            pytest.fail(message)
        pytest.skip(message)
    # Short: Ray's Unix sockets are below it.
    root = subprocess.check_output(["mktemp", "-d", "/tmp/swy-XXXX"], text=True).strip()
    field = Field(root)
    try:
        field.start()
        yield field
    finally:
        field.close()
        subprocess.run(["rm", "-rf", root], check=True)
