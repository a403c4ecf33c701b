"""GET /v1/models: what a row tells of its model in each state."""

import json
import pathlib
from datetime import datetime

import pytest

from switchyard import engine
from switchyard.app.lifecycle.loads import value_of
from switchyard.engine.messages import ModelInfo, ReplicaState
from tests.app.test_lifecycle import complete, load, rows
from tests.scripted import ScriptedBackend

ANTHROPICS = {"anthropic-version": "2023-06-01"}


def status(client, name):
    told = rows(client)[name]["status"]
    return told["value"], told["failed"], told["reason"]


def test_a_row_tells_a_failure_while_it_lasts(serve):
    client = serve()
    assert status(client, "first") == ("loaded", False, None)
    assert status(client, "second") == ("unloaded", False, None)

    error = engine.ModelError(f"no weights for {'0a' * 16}")  # as a response is identified
    client.opened.next["second"] = ScriptedBackend(open_error=error)
    client.post("/admin/models/second", json={}).get_data()
    value, failed, reason = status(client, "second")
    assert (value, failed) == ("failed", True) and "no weights for …" in reason

    load(client, "second")
    assert status(client, "second") == ("loaded", False, None)


@pytest.mark.parametrize(
    ("state", "value"),
    [
        ("unloaded", "unloaded"),
        ("loading", "loading"),
        ("ready", "loaded"),
        ("recovering", "loaded"),
        ("stopped", "unloaded"),
        ("failed", "failed"),
    ],
)
def test_each_state_is_one_that_llama_cpps_clients_know(state, value):
    assert value_of(state) == value


def test_a_row_tells_what_serves_its_model(make_client):
    info = ModelInfo(768, 4096, 256, 64, "scripted", cache_mode="Q6", loras=("style", "tone"))
    client = make_client(ScriptedBackend(info=info), max_seq_len=768)
    model = client.models.get()
    model.standing.replicas = (
        ReplicaState("ready", "", 2, (0, 1), "", 7, 3, 0),  # of the server itself
        ReplicaState("hanging", "slow", 0, (), "tcp:1.2.3.4:5", None, 0, 1),
    )
    [row] = client.get("/v1/models").json["data"]
    assert client.get("/v1/models/scripted").json == row
    replicas = row["meta"].pop("replicas")
    assert [list(one.values()) for one in replicas] == [
        ["ready", 2, [0, 1], None, 7, 3],
        ["hanging", 0, [], "tcp:1.2.3.4:5", None, 0],
    ]
    files = pathlib.Path(model.config.path, "config.json")
    assert row == {
        **{"id": "scripted", "object": "model", "root": "scripted", "parent": None, "aliases": []},
        "owned_by": "switchyard",
        "created": int(files.stat().st_mtime),
        "max_model_len": 768,
        "context_length": 768,
        "system_fingerprint": row["system_fingerprint"],
        "status": {
            **{"value": "loaded", "load": "start", "failed": False},
            **{"progress": None, "reason": None},
        },
        "meta": {
            **{"device": "scripted", "max_seq_len": 768, "n_ctx": 768},
            "n_ctx_train": json.loads(files.read_text())["max_position_embeddings"],
            **{"n_vocab": 4096, "cache_tokens": 64 * 256, "cache_mode": "Q6"},
            "loras": ["style", "tone"],
        },
    }


def test_each_model_has_its_own_row_and_its_own_of_anthropics(serve):
    client = serve()
    for name in ("first", "second", "chat"):
        real = "first" if name == "chat" else name
        assert client.get(f"/v1/models/{name}").json == rows(client)[real]
    told = client.get("/v1/models", headers=ANTHROPICS).json
    assert (told["first_id"], told["last_id"]) == ("first", "second")
    for one in told["data"]:
        assert client.get(f"/v1/models/{one['id']}", headers=ANTHROPICS).json == one
        made = datetime.fromisoformat(one["created_at"]).timestamp()
        assert made == rows(client)[one["id"]]["created"]
    loaded, not_loaded = told["data"]
    assert (loaded["max_input_tokens"], loaded["max_tokens"]) == (2048, 2048)
    assert (not_loaded["max_input_tokens"], not_loaded["max_tokens"]) == (None, None)


def test_models_have_their_order_for_codex_too(serve):
    told = serve().get("/v1/models").json
    assert [(one["slug"], one["priority"]) for one in told["models"]] == [
        ("first", 0),
        ("second", 1),
    ]
    rows = [(one["id"], one["aliases"], one["status"]["load"]) for one in told["data"]]
    assert rows == [("first", ["chat"], "start"), ("second", [], "demand")]


def test_a_row_tells_the_fingerprint_of_the_files_that_answer(serve, tmp_path):
    (tmp_path / "models" / "third" / "generation_config.json").write_text("{}")
    client = serve()
    before = rows(client)["first"]["system_fingerprint"]
    assert complete(client, "first").json["system_fingerprint"] == before
    load(client, "first", model="third")
    after = rows(client)["first"]["system_fingerprint"]
    assert complete(client, "first").json["system_fingerprint"] == after != before
