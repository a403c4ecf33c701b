"""What tests on a GPU share."""

import pytest

from switchyard.engine.backends import make_backend
from switchyard.engine.config import ModelConfig
from tests.conftest import DEMO, make_model

LARGER = (
    *("--hidden-size", "1024", "--intermediate-size", "2816"),
    *("--num-heads", "16", "--num-kv-heads", "4"),
)


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


@pytest.fixture(scope="module")
def make_larger(tmp_path_factory):
    """Models of random weights, about 25 MiB a layer, or 6 with --exl2."""

    def make_larger(num_layers, *options):
        path = str(tmp_path_factory.mktemp("models") / "larger")
        make_model(path, *LARGER, "--num-layers", str(num_layers), *options)
        return path

    return make_larger


@pytest.fixture(scope="module")
def larger(make_larger):
    return make_larger(12)


@pytest.fixture(scope="module")
def quantized(make_larger):
    return make_larger(12, "--exl2")
