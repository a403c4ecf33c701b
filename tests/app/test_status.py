"""All that `/v1/status` tells of a model at work."""

from types import SimpleNamespace

import pytest

from switchyard import __version__, engine
from switchyard.app.http.places import Places
from switchyard.app.routes import status
from switchyard.app.routes.status import status_of
from switchyard.engine.messages import ModelInfo
from switchyard.engine.stats import DeviceMemory, KeptWeights, Occupancy, Rates, Totals

TOTALS = Totals(draft_tokens=300, accepted_tokens=100, resets=1, rebuilds=10, reloads=100)
MEMORY = DeviceMemory("NVIDIA Test", allocated=1, reserved=2, free=3, total=4)
INFO = ModelInfo(2048, 9, 256, 77, "cuda", cache_mode="Q6", products="own")


@pytest.fixture
def here(monkeypatch):
    """The services over one model at work, whose numbers all differ."""
    monkeypatch.setattr(status, "BEGIN", 100.0)
    monkeypatch.setattr(status, "time", SimpleNamespace(monotonic=lambda: 612.34))
    monkeypatch.setattr(status, "last_iteration_age", lambda _: 0.25049)
    pages = {"referenced_pages": 33, "cached_pages": 22}
    occupancy = Occupancy(**pages, memory=(MEMORY,), parked_jobs=5, kept=KeptWeights(5, 8))
    standing = SimpleNamespace(
        stats=engine.Stats(0.0, TOTALS, num_active=3, occupancy=occupancy),
        info=INFO,
        rates={612.34: Rates(12.34, 567.89, 0.0123456)}.get,
        num_restarts=1000,
    )
    config = engine.ModelConfig("/m/dir", "name", max_batch_size=5, max_pending=6)
    model = SimpleNamespace(config=config, standing=standing, num_jobs=7)
    found = SimpleNamespace(state="recovering", progress=0.12345)
    models = SimpleNamespace(names=["name"], get={"name": model}.get, status={"name": found}.get)
    websockets = Places(8)
    websockets.take("a")
    return SimpleNamespace(
        models=models,
        answers=SimpleNamespace(streams={1, 2}),
        websockets=websockets,
        threads=SimpleNamespace(count=lambda: (11, 12)),
        model=model,
    )


SUMS = {
    **{"id": "name", "state": "recovering", "progress": 0.123},
    **{"running": 3, "waiting": 4, "parked": 5},
}


def test_the_status_tells_each_number_of_a_model_at_work(here):
    told = status_of(here, sees_all=True)
    [model] = told.pop("models")
    assert told == {
        "object": "status",
        "version": __version__,
        "uptime": 512.3,
        "streams": 2,
        "websockets": 1,
        "threads": {"busy": 11, "all": 12},
    }
    assert model == {
        **SUMS,
        **{"max_batch_size": 5, "max_pending": 6, "max_seq_len": 2048, "cache_mode": "Q6"},
        **{"tokens_per_second": 12.3, "prompt_tokens_per_second": 567.9, "iteration_ms": 12.35},
        **{"last_iteration_age": 0.25, "recoveries": 1111, "draft_acceptance": 0.333},
        "gpus": [{"name": "NVIDIA Test", "allocated": 1, "reserved": 2, "free": 3, "total": 4}],
        "products": "own",
        "unpacked_weights": {"bytes": 5, "min_tokens": 8},
        "pages": {"all": 77, "referenced": 33, "cached": 22},
    }


def test_the_status_for_a_users_key_has_states_and_sums_alone(here):
    told = status_of(here, sees_all=False)
    assert told.keys() == {"object", "version", "uptime", "models"}
    assert told["models"] == [SUMS]


def test_a_job_that_ended_since_the_last_report_makes_no_number_below_0(here):
    here.model.num_jobs = 2
    [model] = status_of(here, sees_all=False)["models"]
    assert (model["running"], model["waiting"]) == (3, 0)


def test_a_server_that_can_not_count_its_threads_tells_none(here):
    here.threads.count = None
    assert "threads" not in status_of(here, sees_all=True)
