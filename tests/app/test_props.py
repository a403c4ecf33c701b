"""What llama.cpp's clients ask of a server, and the addresses without /v1."""

import json
import shutil

from tests.app.conftest import listed, wait_until_empty
from tests.conftest import DEMO
from tests.scripted import ScriptedBackend, ticking

HELLO = [{"role": "user", "content": "Hello"}]
ANSWERED = {  # by the address without /v1
    "/chat/completions": {"messages": HELLO, "max_tokens": 2},
    "/completions": {"prompt": "x", "max_tokens": 2},
    "/responses": {"input": "Hello", "max_output_tokens": 2},
    "/messages": {"messages": HELLO, "max_tokens": 2, "model": "scripted"},
}
COUNTED = {
    "/chat/completions/input_tokens": {"messages": HELLO},
    "/responses/input_tokens": {"input": "Hello"},
    "/messages/count_tokens": {"messages": HELLO, "model": "scripted"},
}


def test_props_tell_the_context_and_no_path(make_client, model_path):
    client = make_client(max_batch_size=3)
    props = client.get("/props").json
    assert props["default_generation_settings"] == {"n_ctx": 2048}
    assert props["total_slots"] == 3
    assert props["modalities"] == {"vision": False, "audio": False}
    assert (props["model_alias"], props["model_path"]) == ("scripted", "scripted")
    assert props["chat_template"] == client.models.get().model_dir.chat_template
    assert props["build_info"].startswith("switchyard-")
    assert model_path not in json.dumps(props)


def test_props_tell_tokens_and_template_as_far_as_the_model_has_them(make_client, tmp_path):
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    path = shutil.copytree(DEMO, tmp_path / "model")
    for more, told in ((config, ("<s>", "</s>", "")), ({}, ("", "", ""))):
        (path / "tokenizer_config.json").write_text(json.dumps(more))
        props = make_client(path=str(path)).get("/props").json
        assert (props["bos_token"], props["eos_token"], props["chat_template"]) == told


def test_slots_tell_how_many_are_at_work_and_not_whose(make_client, ask):
    client = make_client(ScriptedBackend(ticking, max_active=2), max_batch_size=3)
    assert [slot["is_processing"] for slot in client.get("/slots").json] == [False] * 3
    for _ in range(3):  # one of which waits
        ask(client, {"prompt": "secret", "max_tokens": 2000, "ignore_eos": True})
    rows = listed(client, 3, active=2)
    slots = client.get("/slots").json
    assert [(slot["id"], slot["n_ctx"]) for slot in slots] == [(0, 2048), (1, 2048), (2, 2048)]
    assert [slot["is_processing"] for slot in slots] == [True, True, False]
    assert set(slots[0]) == {"id", "n_ctx", "speculative", "is_processing"}
    assert not slots[0]["speculative"]
    for row in rows:
        client.delete(f"/v1/requests/{row['id']}")
    wait_until_empty(client)


def test_slots_tell_whether_tokens_are_guessed(make_client):
    slots = make_client(ngram_draft=True).get("/slots").json
    assert {slot["speculative"] for slot in slots} == {True}


def test_a_model_that_loads_has_neither_yet(loading):
    client = loading()
    assert [client.get(path).status_code for path in ("/props", "/slots")] == [503, 503]


def test_the_same_is_answered_without_v1(client):
    assert client.get("/models").json == client.get("/v1/models").json
    for path, body in ANSWERED.items():
        with_v1, without = (client.post(p, json=body).json for p in (f"/v1{path}", path))
        assert without.keys() == with_v1.keys(), path
        assert without["usage"] == with_v1["usage"], path
    for path, body in COUNTED.items():
        with_v1, without = (client.post(p, json=body).json for p in (f"/v1{path}", path))
        assert without == with_v1 and without["input_tokens"] > 0, path


def test_errors_without_v1_are_in_the_format_s_words(client):
    assert client.post("/messages", json={}).json["type"] == "error"
    assert client.post("/responses", json={}).json["error"]["param"] == "input"
    response = client.get("/chat/completions")
    assert (response.status_code, "POST" in response.headers["Allow"]) == (405, True)
    assert client.options("/chat/completions").status_code == 200


def test_the_document_has_each_route_once(client):
    paths = client.get("/openapi.json").json["paths"]
    assert not paths.keys() & {"/models", *ANSWERED}
    assert {"/v1/models", *(f"/v1{path}" for path in ANSWERED)} <= paths.keys()


def test_a_format_that_is_not_served_is_not_served_without_v1_either(make_client):
    client = make_client(formats=["openai"])
    assert client.post("/messages", json=ANSWERED["/messages"]).status_code == 404
    assert client.post("/completions", json=ANSWERED["/completions"]).status_code == 200
