"""GET /v1/models: the rows, what Codex reads beside them, and both at other addresses."""

import json
import pathlib

import pytest

from switchyard.engine.messages import ModelInfo
from tests.scripted import ScriptedBackend

ANTHROPICS = {"anthropic-version": "2023-06-01"}


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
        "slug": "scripted",
        "display_name": "scripted",
        "description": None,
        "priority": 0,
        "visibility": "list",
        "supported_in_api": True,
        "shell_type": "default",
        "apply_patch_tool_type": None,
        "experimental_supported_tools": [],
        "supports_parallel_tool_calls": True,
        "context_window": 2048,
        "truncation_policy": {"mode": "tokens", "limit": 512},
        "input_modalities": ["text"],
        "supported_reasoning_levels": [],
        "default_reasoning_level": None,
        "supports_reasoning_summaries": False,
        "supports_reasoning_summary_parameter": False,
        "support_verbosity": False,
        "default_verbosity": None,
        **{"availability_nux": None, "upgrade": None},
    }


def test_codex_keeps_no_more_of_a_tools_output_than_its_own_limit(make_client):
    backend = ScriptedBackend(info=ModelInfo(65_536, 4096, 256, 1024, "scripted"))
    [model] = make_client(backend).get("/v1/models").json["models"]
    assert model["truncation_policy"]["limit"] == 10_000


def test_codex_is_told_of_efforts_that_the_template_uses(make_client, with_template):
    template = "{{ reasoning_effort }}{% for m in messages %}{{ m.content }}{% endfor %}"
    client = make_client(ScriptedBackend(), path=with_template(template))
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
