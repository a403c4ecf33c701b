"""What tests on a GPU share."""

import pytest

from engine.backends import make_backend
from engine.config import ModelConfig
from tests.conftest import DEMO


@pytest.fixture
def serve():
    """A backend on the GPU, closed in the end."""
    opened = []

    def serve(path=DEMO, **config):
        backend = make_backend(ModelConfig(path=path, name="gpu", device="cuda", **config))
        backend.info = backend.open()
        opened.append(backend)
        return backend

    yield serve
    for backend in opened:
        backend.close()
