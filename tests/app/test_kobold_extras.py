"""What KoboldAI's and text-generation-webui's clients ask beside a text."""

import time

import pytest

from tests.app.conftest import wait_until_empty
from tests.app.refused import error_of
from tests.scripted import ScriptedBackend, ticking

pytestmark = pytest.mark.both_ways

GENERATE, ABORT = "/api/v1/generate", "/api/extra/abort"

ANN, BOB = {"x-api-key": "ann"}, {"x-api-key": "bob"}


def wait_for_jobs(client, number):
    while client.models.get().num_jobs < number:
        time.sleep(0.01)


def abort(client, headers, **body):
    return client.post(ABORT, json=body, headers=headers).json["success"]


def reason_of(answers):
    return answers.get(timeout=20).json["results"][0]["finish_reason"]


@pytest.mark.parameter("genkey", "/api/v1/generate", "/api/extra/abort")
def test_a_key_aborts_its_own_clients_generation_and_no_other(make_client, gate, ask):
    client = make_client(ScriptedBackend(ticking, gate=gate))
    body = {"prompt": "x", "max_length": 2000}
    first, *_ = (
        ask(client, {**body, "genkey": key}, GENERATE, headers=user)
        for key, user in (("one", ANN), ("two", ANN), ("one", BOB))
    )
    wait_for_jobs(client, 3)
    gate.open()
    assert not abort(client, ANN, genkey="three")
    assert abort(client, ANN, genkey="one")
    assert reason_of(first) == "cancelled"
    assert client.models.get().num_jobs == 2
    assert abort(client, ANN, genkey="two") and abort(client, BOB, genkey="one")
    wait_until_empty(client)


def test_who_has_an_api_key_can_abort_what_has_no_genkey(make_client, gate, ask):
    client = make_client(ScriptedBackend(gate=gate))
    body = {"prompt": "x", "max_length": 5}
    answers = [ask(client, body, GENERATE, headers=headers) for headers in ({}, ANN)]
    wait_for_jobs(client, 2)
    assert [abort(client, headers) for headers in ({}, BOB, ANN)] == [False, False, True]
    gate.open()
    assert [reason_of(one) for one in answers] == ["length", "cancelled"]
    assert error_of(client.post(ABORT, json={"genkey": 5}))["param"] == "genkey"


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
def test_what_clients_ask_before_they_generate(client, path, body):
    assert client.get(path).json == body


def test_the_default_limit_is_the_models_own(serve):
    client = serve()
    assert client.post("/admin/models/first", json={"default_max_tokens": 9}).status_code == 200
    assert client.get("/api/v1/config/max_length").json == {"value": 9}
