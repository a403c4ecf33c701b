"""What Ollama's clients ask of models, and in which order, over a scripted backend."""

import json
import pathlib

import pytest

from switchyard.app.formats.ollama.keep import seconds
from tests.app.test_ollama import CHAT, GENERATE, lines
from tests.scripted import ScriptedBackend, says

pytestmark = pytest.mark.both_ways

SEQUENCES = pathlib.Path(__file__).parent / "bodies" / "ollama"  # each says its source and date


@pytest.mark.parameter("keep_alive")
@pytest.mark.parametrize("path", [CHAT, GENERATE])
def test_without_a_prompt_the_model_is_loaded_or_unloaded(client, path):
    [loaded] = lines(client.post(path, json={"model": "scripted:latest"}))
    assert (loaded["done"], loaded["done_reason"]) == (True, "load")
    foreign = {"Origin": "http://localhost", "X-Forwarded-For": "10.0.0.1"}
    body = {"model": "scripted", "keep_alive": "0s", "stream": False}
    refused = client.post(path, json=body, headers=foreign)
    assert refused.status_code == 403 and "unload" in refused.json["error"]
    told = client.post(path, json={**body, "keep_alive": "5m"})
    assert told.headers["X-Switchyard-Ignored"] == "keep_alive"  # no key speaks for an operator
    assert client.models.served().idle_timeout == 0
    assert client.post(path, json=body).json["done_reason"] == "unload"
    assert not client.backend.enqueued


@pytest.mark.one_way
@pytest.mark.parametrize(
    ("value", "expected"),
    [("5m", 300), ("1h30m", 5400), ("-1", -1), ("0", 0), ("1.5s", 1.5), ("-1m", -60), (7, 7)],
)
def test_durations_are_as_go_writes_them(value, expected):
    assert seconds(value) == pytest.approx(expected)


@pytest.mark.parameter("stream", "/api/pull")
def test_what_is_there_needs_no_download(client):
    told = {"status": "success"}
    assert lines(client.post("/api/pull", json={"name": "scripted:latest"})) == [told]
    body = {"model": "scripted", "stream": False, "insecure": True}
    assert client.post("/api/pull", json=body).json == told


def test_models_are_listed_and_shown(client):
    [listed] = client.get("/api/tags").json["models"]
    [running] = client.get("/api/ps").json["models"]
    shown = client.post("/api/show", json={"name": "scripted"}).json
    assert listed["name"] == listed["model"] == running["name"] == "scripted"
    assert listed["details"] == running["details"] == shown["details"]
    assert listed["size"] > 10**6 and len(listed["digest"]) == 12
    assert running["context_length"] == 2048 and running["expires_at"] > "2100"
    assert shown["details"]["family"] == "llama" and "completion" in shown["capabilities"]
    assert shown["model_info"]["llama.block_count"] == 2
    assert shown["parameters"].splitlines()[0].split() == ["temperature", "0.8"]
    assert "<|im_start|>" in shown["template"]
    client.models.keep("scripted", 60.0)
    [running] = client.get("/api/ps").json["models"]
    assert running["expires_at"] < "2100"


@pytest.mark.parametrize("path", sorted(SEQUENCES.glob("*.json")), ids=lambda path: path.stem)
def test_what_programs_ask_one_after_another_is_answered(make_client, path):
    client = make_client(ScriptedBackend(says("Yes.")))
    told = set()
    for request in json.loads(path.read_text())["requests"]:
        body = request.get("body")
        name = {name: "scripted" for name in ("model", "name") if name in (body or {})}
        body = body and {**body, **name}
        response = client.open(request["path"], method=request["method"], json=body)
        assert response.status_code == 200, (request, response.text)
        if request["path"] in (CHAT, GENERATE):
            assert "Yes." in response.text and '"done_reason":"stop"' in response.text
        told |= set(response.headers.get("X-Switchyard-Ignored", "").split(",")) - {""}
    assert told == {"num_ctx", "keep_alive"}
