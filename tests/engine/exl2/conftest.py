"""The real generator on the CPU, in both orders in which it works."""

import pytest

from tests.engine.forced import exl2_backend


@pytest.fixture(scope="module", params=[False, True], ids=["in turn", "overlapping"])
def is_overlapping(request):
    """Whether the generator works in the order of a GPU, where host and device do so at once."""
    return request.param


@pytest.fixture(scope="module")
def backend(model_path, is_overlapping, library):
    backend = exl2_backend(model_path, is_overlapping=is_overlapping)
    backend.open()
    yield backend
    backend.close()


@pytest.fixture
def forced(opened, is_overlapping):
    """The generator over a ForcedModel."""

    def make(logits, before=None, **config):
        return opened(logits=logits, before=before, is_overlapping=is_overlapping, **config)

    return make
