"""Health while a model loads, and a drain by request."""

import pytest

from switchyard.engine.messages import LoadProgress
from tests.scripted import ScriptedBackend

# At its own path, and as load balancers and other servers' clients ask.
READY = ("/health/ready", "/health", "/ping", "/v1/health/ready", "/v2/health/ready")


def test_live_answers_while_the_model_loads_and_ready_does_not(loading):
    client = loading()
    assert client.get("/health/live").json == {"status": "live"}
    assert [client.get(path).status_code for path in READY] == [503] * len(READY)
    told = {"status": "unready", "models": {"scripted": "loading"}, "progress": {}}
    told["reasons"] = {"scripted": "the model is loading"}
    assert client.get("/health/ready").json == told
    client.models.get().deliver([LoadProgress(0.41999)])
    assert client.get("/health/ready").json == {**told, "progress": {"scripted": 0.42}}
    client.backend.opening.set()
    assert client.models.wait_until_loaded(20)
    assert [client.get(path).status_code for path in READY] == [200] * len(READY)
    assert client.get("/health/ready").json == {"status": "ready", "models": {"scripted": "ready"}}
    client.models.drain()
    assert [client.get(path).status_code for path in READY] == [503] * len(READY)


def test_a_drain_by_request_refuses_at_once_and_ends_the_server(make_client):
    ended = []
    client = make_client(ScriptedBackend(), terminate=lambda: ended.append(True))
    assert client.post("/admin/drain").status_code == 202
    assert ended == [True]
    assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 503


@pytest.mark.parametrize(
    ("more", "status"), [({}, 501), ({"environ_base": {"REMOTE_ADDR": "10.0.0.1"}}, 403)]
)
def test_a_server_that_may_or_can_not_be_told_to_end_goes_on(client, more, status):
    assert client.post("/admin/drain", **more).status_code == status
    assert client.get("/health/ready").status_code == 200
