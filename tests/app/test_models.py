"""GET /v1/models: the rows, in each state, what Codex reads beside them, and other addresses."""

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
    assert [(m["slug"], m["priority"]) for m in told["models"]] == [("first", 0), ("second", 1)]
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


def test_while_it_loads_the_context_is_that_of_the_files(loading):
    body = loading(max_seq_len=1024).get("/v1/models").json
    assert (body["data"][0]["max_model_len"], body["data"][0]["meta"]) == (1024, {})
    assert body["models"][0]["context_window"] == 1024


def test_a_context_that_the_files_do_not_tell_is_unknown_while_it_loads(loading, with_template):
    path = with_template("x")
    file = pathlib.Path(path, "config.json")
    config = json.loads(file.read_text())
    del config["max_position_embeddings"]
    file.write_text(json.dumps(config))
    body = loading(path=path).get("/v1/models").json
    [row], [model] = body["data"], body["models"]
    assert (row["max_model_len"], row["context_length"]) == (None, None)
    assert (model["context_window"], model["truncation_policy"]["limit"]) == (None, 10_000)


def test_codex_finds_all_that_it_needs_and_what_this_server_has(client):
    """The fields of Codex 0.169's ModelInfo, and those that its first version needed."""
    [model] = client.get("/v1/models").json["models"]
    assert "Codex" in model.pop("base_instructions")
    assert model == {
        **{"slug": "scripted", "display_name": "scripted", "description": None, "priority": 0},
        **{"visibility": "list", "supported_in_api": True, "shell_type": "default"},
        **{"apply_patch_tool_type": None, "experimental_supported_tools": []},
        **{"supports_parallel_tool_calls": True, "context_window": 2048},
        "truncation_policy": {"mode": "tokens", "limit": 512},
        **{"input_modalities": ["text"], "supported_reasoning_levels": []},
        **{"default_reasoning_level": None, "supports_reasoning_summaries": False},
        **{"supports_reasoning_summary_parameter": False, "support_verbosity": False},
        **{"default_verbosity": None, "availability_nux": None, "upgrade": None},
    }


def test_codex_keeps_no_more_of_a_tools_output_than_its_own_limit(make_client):
    backend = ScriptedBackend(info=ModelInfo(65_536, 4096, 256, 1024, "scripted"))
    [model] = make_client(backend).get("/v1/models").json["models"]
    assert model["truncation_policy"]["limit"] == 10_000


def test_codex_is_told_of_efforts_that_the_template_uses(make_client, with_template):
    template = "{{ reasoning_effort }}{% for m in messages %}{{ m.content }}{% endfor %}"
    client = make_client(path=with_template(template))
    [model] = client.get("/v1/models").json["models"]
    efforts = [level["effort"] for level in model["supported_reasoning_levels"]]
    assert efforts == ["low", "medium", "high"]
    assert model["default_reasoning_level"] == "medium"


@pytest.mark.parametrize("path", ["/v1/models/", "/models/"])
def test_a_slash_at_the_end_makes_no_difference(client, path):
    response = client.get(path)
    assert (response.status_code, response.json) == (200, client.get("/v1/models").json)


def test_anthropic_s_clients_get_their_own_shape_and_errors(client):
    told = client.get("/v1/models", headers=ANTHROPICS).json
    assert "models" not in told and told["data"][0]["created_at"].endswith("Z")
    answers = client.get("/openapi.json").json["paths"]["/v1/models/{model}"]["get"]["responses"]
    schema = answers["404"]["content"]["application/json"]["schema"]
    kinds = {kind["$ref"].rpartition("/")[2] for kind in schema["anyOf"]}
    assert kinds == {"ErrorBody", "AnthropicErrorBody"}
    response = client.get("/v1/models/other", headers=ANTHROPICS)
    assert (response.status_code, response.json["type"]) == (404, "error")
