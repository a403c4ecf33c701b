"""GET /v1/models: the rows, what Codex reads beside them, and both at other addresses."""

import json
import pathlib

import pytest

from switchyard.engine.messages import ModelInfo
from tests.scripted import ScriptedBackend

ANTHROPICS = {"anthropic-version": "2023-06-01"}
# Of Codex 0.169's ModelInfo, and of the first that it has had: those without a default.
REQUIRED = {
    "slug",
    "display_name",
    "supported_reasoning_levels",
    "shell_type",
    "visibility",
    "supported_in_api",
    "priority",
    "base_instructions",
    "supports_reasoning_summaries",
    "support_verbosity",
    "truncation_policy",
    "supports_parallel_tool_calls",
    "experimental_supported_tools",
}


def test_a_row_tells_the_context_under_each_client_s_name(make_client):
    client = make_client(ScriptedBackend())
    [row] = client.get("/v1/models").json["data"]
    assert (row["max_model_len"], row["context_length"]) == (2048, 2048)
    assert (row["root"], row["parent"]) == ("scripted", None)


def test_while_it_loads_the_context_is_that_of_the_files(make_client):
    backend = ScriptedBackend()
    backend.opening.clear()
    client = make_client(backend, wait=False, max_seq_len=1024)
    body = client.get("/v1/models").json
    assert body["data"][0]["max_model_len"] == 1024
    assert body["models"][0]["context_window"] == 1024
    backend.opening.set()


def test_a_context_that_the_files_do_not_tell_is_unknown_while_it_loads(make_client, with_template):
    path = with_template("x")
    file = pathlib.Path(path, "config.json")
    config = json.loads(file.read_text())
    del config["max_position_embeddings"]
    file.write_text(json.dumps(config))
    backend = ScriptedBackend()
    backend.opening.clear()
    body = make_client(backend, wait=False, path=path).get("/v1/models").json
    [row], [model] = body["data"], body["models"]
    assert (row["max_model_len"], row["context_length"]) == (None, None)
    assert (model["context_window"], model["truncation_policy"]["limit"]) == (None, 10_000)
    backend.opening.set()


def test_codex_finds_all_that_it_needs(make_client):
    [model] = make_client(ScriptedBackend()).get("/v1/models").json["models"]
    assert model.keys() >= REQUIRED
    assert not [name for name in REQUIRED if model[name] is None]
    assert (model["slug"], model["context_window"]) == ("scripted", 2048)
    assert model["truncation_policy"] == {"mode": "tokens", "limit": 512}
    assert model["supported_reasoning_levels"] == []
    assert model["default_reasoning_level"] is None
    assert "Codex" in model["base_instructions"]


def test_codex_is_told_what_this_server_has_and_has_not(make_client):
    [model] = make_client(ScriptedBackend()).get("/v1/models").json["models"]
    told = {name for name, value in model.items() if value is True}
    assert told == {"supported_in_api", "supports_parallel_tool_calls"}
    assert {name for name, value in model.items() if value is False} == {
        "support_verbosity",
        "supports_reasoning_summaries",
        "supports_reasoning_summary_parameter",
    }
    assert (model["display_name"], model["shell_type"]) == ("scripted", "default")
    assert (model["visibility"], model["input_modalities"]) == ("list", ["text"])
    assert model["experimental_supported_tools"] == [] and model["apply_patch_tool_type"] is None


def test_codex_keeps_no_more_of_a_tools_output_than_its_own_limit(make_client):
    backend = ScriptedBackend(info=ModelInfo(65_536, 4096, 256, 1024, "scripted"))
    [model] = make_client(backend).get("/v1/models").json["models"]
    assert model["truncation_policy"]["limit"] == 10_000


def test_codex_is_told_of_efforts_that_the_template_uses(make_client, with_template):
    template = "{{ reasoning_effort }}{% for m in messages %}{{ m.content }}{% endfor %}"
    client = make_client(ScriptedBackend(), path=with_template(template))
    [model] = client.get("/v1/models").json["models"]
    assert [level["effort"] for level in model["supported_reasoning_levels"]] == [
        "low",
        "medium",
        "high",
    ]
    assert model["default_reasoning_level"] == "medium"


@pytest.mark.parametrize("path", ["/v1/models/", "/models/"])
def test_a_slash_at_the_end_makes_no_difference(make_client, path):
    client = make_client(ScriptedBackend())
    response = client.get(path)
    assert (response.status_code, response.json) == (200, client.get("/v1/models").json)


def test_anthropic_s_clients_get_their_own_shape_and_errors(make_client):
    client = make_client(ScriptedBackend())
    told = client.get("/v1/models", headers=ANTHROPICS).json
    assert "models" not in told and told["data"][0]["created_at"].endswith("Z")
    answers = client.get("/openapi.json").json["paths"]["/v1/models/{model}"]["get"]["responses"]
    schema = answers["404"]["content"]["application/json"]["schema"]
    kinds = {kind["$ref"].rpartition("/")[2] for kind in schema["anyOf"]}
    assert kinds == {"ErrorBody", "AnthropicErrorBody"}
    response = client.get("/v1/models/other", headers=ANTHROPICS)
    assert (response.status_code, response.json["type"]) == (404, "error")
