"""Several models over scripted backends, on a machine with so much memory."""

import pytest

from switchyard.engine.models import lessor, lifecycle
from tests.engine.models.asked import Served


@pytest.fixture
def served(model_path, monkeypatch):
    monkeypatch.setattr(lifecycle, "LOOK", 0.01)
    monkeypatch.setattr(lessor, "LOOK", 0.02)
    made = []

    def make(*args, **options):
        made.append(Served(model_path, *args, **options))
        return made[-1]

    yield make
    for one in made:
        for *_, backend in one.backends:
            backend.opening.set()
        if one.models is not None:
            assert one.models.close(timeout=20)


@pytest.fixture
def table(served):
    return served()
