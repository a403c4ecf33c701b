"""Health, models, and an application that is mounted in another."""

import threading

import pytest

from switchyard import engine
from switchyard.engine.messages import LoadProgress
from tests.scripted import ScriptedBackend


def test_live_answers_while_the_model_loads_and_ready_does_not(make_client):
    backend = ScriptedBackend()
    backend.opening.clear()
    client = make_client(backend, wait=False)
    assert client.get("/health/live").status_code == 200
    response = client.get("/health/ready")
    assert response.status_code == 503 and response.json["models"] == {"scripted": "loading"}
    assert response.json["reasons"] == {"scripted": "the model is loading"}
    assert response.json["progress"] == {}
    client.models.get().deliver([LoadProgress(0.41999)])
    assert client.get("/health/ready").json["progress"] == {"scripted": 0.42}
    backend.opening.set()
    assert client.models.wait_until_loaded(20)
    response = client.get("/health/ready")
    assert response.status_code == 200
    assert response.json == {"status": "ready", "models": {"scripted": "ready"}}


def test_ready_tells_why_a_model_failed(make_client):
    reason = f"no weights for cmpl-{'a0' * 16}"  # which opens a stream
    backend = ScriptedBackend(open_error=engine.ModelError(reason))
    client = make_client(backend, wait=False)
    assert not client.models.wait_until_loaded(20)
    response = client.get("/health/ready")
    told = {"scripted": "no weights for cmpl-…"}
    assert response.status_code == 503 and response.json["reasons"] == told
    assert client.get("/health/live").status_code == 200


def test_ready_tells_of_a_drain_and_of_the_end(make_client):
    client = make_client(ScriptedBackend())
    client.models.drain()
    response = client.get("/health/ready")
    assert response.status_code == 503 and response.json["models"] == {"scripted": "draining"}
    assert "accepts no new ones" in response.json["reasons"]["scripted"]
    assert client.models.close(timeout=20)
    response = client.get("/health/ready")
    assert response.status_code == 503 and response.json["models"] == {"scripted": "stopped"}
    assert "has shut down" in response.json["reasons"]["scripted"]
    assert client.get("/health/live").status_code == 200


def test_ready_tells_of_a_recovery_and_recovers(make_client):
    backend = ScriptedBackend()
    backend.iterate_errors = [RuntimeError("bad luck"), RuntimeError("again")]
    backend.recovering.clear()
    client = make_client(backend)
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(client.post("/v1/completions", json={"prompt": "x"}))
    )
    thread.start()
    model = client.models.get()
    with model._changed:
        assert model._changed.wait_for(lambda: model.state == "recovering", 20)
    response = client.application.test_client().get("/health/ready")
    assert response.status_code == 503 and response.json["models"] == {"scripted": "recovering"}
    assert "bad luck" in response.json["reasons"]["scripted"]
    backend.recovering.set()
    thread.join(20)
    with model._changed:
        assert model._changed.wait_for(lambda: model.state == "ready", 20)
    assert client.get("/health/ready").status_code == 200


def test_a_drain_by_request_refuses_at_once_and_ends_the_server(make_client):
    ended = []
    client = make_client(ScriptedBackend(), terminate=lambda: ended.append(True))
    assert client.post("/admin/drain").status_code == 202
    assert ended == [True]
    assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 503


@pytest.mark.parametrize(
    ("address", "headers"),
    [
        ("10.0.0.1", {}),
        ("127.0.0.1", {"X-Forwarded-For": "10.0.0.1"}),
        ("127.0.0.1", {"Forwarded": "for=10.0.0.1"}),
        ("127.0.0.1", {"Origin": "http://page.example"}),
    ],
)
def test_only_a_process_of_this_machine_may_drain(make_client, address, headers):
    ended = []
    client = make_client(ScriptedBackend(), terminate=lambda: ended.append(True))
    environ = {"REMOTE_ADDR": address}
    response = client.post("/admin/drain", headers=headers, environ_overrides=environ)
    assert response.status_code == 403 and not ended
    assert client.get("/health/ready").status_code == 200


def test_a_server_that_cannot_be_told_to_end_says_so(make_client):
    client = make_client(ScriptedBackend())
    assert client.post("/admin/drain").status_code == 501
    assert client.get("/health/ready").status_code == 200


def test_models_are_listed_and_retrieved(make_client):
    client = make_client(ScriptedBackend())
    body = client.get("/v1/models").json
    [model] = body["data"]
    assert body["object"] == "list"
    assert model["id"] == "scripted" and model["object"] == "model"
    assert isinstance(model["created"], int) and model["owned_by"] == "switchyard"
    assert model["meta"] == {
        "device": "scripted",
        "max_seq_len": 2048,
        "n_ctx": 2048,
        "n_ctx_train": 2048,
        "n_vocab": 4096,
        "cache_tokens": 16384,
        "cache_mode": "float32",
        "loras": [],
        "replicas": [],
    }
    assert client.get("/v1/models/scripted").json == model


def test_a_model_that_loads_has_nothing_to_tell_yet(make_client):
    backend = ScriptedBackend()
    backend.opening.clear()
    client = make_client(backend, wait=False)
    assert client.get("/v1/models/scripted").json["meta"] == {}
    backend.opening.set()
