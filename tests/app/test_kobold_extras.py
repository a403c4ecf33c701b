"""What KoboldAI's and text-generation-webui's clients ask beside a text."""

import threading
import time

import pytest

from tests.app.conftest import wait_until_empty
from tests.app.test_lifecycle import make
from tests.scripted import Gate, ScriptedBackend, ticking

__all__ = ["make"]

pytestmark = pytest.mark.both_ways

GENERATE, ABORT = "/api/v1/generate", "/api/extra/abort"

ANN = {"x-api-key": "ann"}


@pytest.mark.parameter("genkey", "/api/v1/generate")
@pytest.mark.parameter("genkey", "/api/extra/abort")
def test_a_key_aborts_its_own_clients_generation_and_no_other(make_client):
    gate = Gate()
    client = make_client(ScriptedBackend(ticking, gate=gate))
    texts = {}

    def generate(key, user):
        body = {"prompt": "x", "max_length": 2000, "genkey": key}
        texts[key, user] = client.application.test_client().post(
            GENERATE, json=body, headers={"x-api-key": user}
        )

    def abort(key, user):
        answer = client.post(ABORT, json={"genkey": key}, headers={"x-api-key": user})
        return answer.json["success"]

    whose = [("one", "ann"), ("two", "ann"), ("one", "bob")]
    threads = [threading.Thread(target=generate, args=args) for args in whose]
    for thread in threads:
        thread.start()
    model = client.models.get()
    while model.num_jobs < 3:
        threads[0].join(0.01)
    gate.open()
    assert not abort("three", "ann")
    assert abort("one", "ann")
    threads[0].join(20)
    assert texts["one", "ann"].json["results"][0]["finish_reason"] == "cancelled"
    assert model.num_jobs == 2
    assert abort("two", "ann") and abort("one", "bob")
    for thread in threads:
        thread.join(20)
    wait_until_empty(client)


def test_who_has_an_api_key_can_abort_what_has_no_genkey(make_client, ask):
    client = make_client(ScriptedBackend(ticking))
    answers = ask(client, {"prompt": "x", "max_length": 2000}, GENERATE, headers=ANN)
    while not client.models.get().num_jobs:
        time.sleep(0.01)
    for headers in ({}, {"x-api-key": "bob"}):
        assert client.post(ABORT, json={}, headers=headers).json == {"success": False}
    assert client.post(ABORT, json={}, headers=ANN).json == {"success": True}
    assert answers.get(timeout=20).json["results"][0]["finish_reason"] == "cancelled"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/api/extra/tokencount", {"prompt": "\ufdd0"}, "prompt"),
        ("/v1/internal/encode", {"text": "\ufdd0"}, "text"),
        ("/v1/internal/encode", {}, "text"),
        ("/v1/internal/decode", {"tokens": [4_000_000]}, "tokens"),
        (ABORT, {"genkey": 5}, "genkey"),
    ],
)
def test_what_is_wrong_is_named(make_client, path, body, param):
    response = make_client(ScriptedBackend()).post(path, json=body)
    assert response.status_code == 400 and response.json["error"]["param"] == param


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/model", {"result": "scripted"}),
        ("/api/v1/info/version", {"result": "1.2.5"}),
        ("/api/extra/version", {"result": "KoboldCpp", "version": "1.48"}),
        ("/api/v1/config/max_context_length", {"value": 2048}),
        ("/api/extra/true_max_context_length", {"value": 2048}),
        ("/api/v1/config/max_length", {"value": 512}),
        ("/v1/internal/model/info", {"model_name": "scripted", "lora_names": []}),
    ],
)
def test_what_clients_ask_before_they_generate(make_client, path, body):
    assert make_client(ScriptedBackend()).get(path).json == body


def test_the_default_limit_is_the_models_own(make):
    client = make()
    assert client.post("/admin/models/first", json={"default_max_tokens": 9}).status_code == 200
    assert client.get("/api/v1/config/max_length").json == {"value": 9}
