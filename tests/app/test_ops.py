"""Health, models, and an application that is mounted in another."""

import engine
from tests.scripted import ScriptedBackend


def test_live_answers_while_the_model_loads_and_ready_does_not(make_client):
    backend = ScriptedBackend()
    backend.opening.clear()
    client = make_client(backend, wait=False)
    assert client.get("/health/live").status_code == 200
    response = client.get("/health/ready")
    assert response.status_code == 503 and response.json["models"] == {"scripted": "loading"}
    backend.opening.set()
    assert client.models.wait_until_loaded(20)
    response = client.get("/health/ready")
    assert response.status_code == 200
    assert response.json == {"status": "ready", "models": {"scripted": "ready"}}


def test_ready_tells_why_a_model_failed(make_client):
    backend = ScriptedBackend(open_error=engine.ModelError("no weights"))
    client = make_client(backend, wait=False)
    assert not client.models.wait_until_loaded(20)
    response = client.get("/health/ready")
    assert response.status_code == 503 and response.json["errors"] == {"scripted": "no weights"}
    assert client.get("/health/live").status_code == 200


def test_models_are_listed_and_retrieved(make_client):
    client = make_client(ScriptedBackend())
    body = client.get("/v1/models").json
    [model] = body["data"]
    assert body["object"] == "list"
    assert model["id"] == "scripted" and model["object"] == "model"
    assert isinstance(model["created"], int) and model["owned_by"] == "switchyard"
    assert client.get("/v1/models/scripted").json == model
