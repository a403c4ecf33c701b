"""A model whose files can't be read, as the default one: what each route answers for it."""

import shutil

import pytest

from switchyard.app import create_app
from switchyard.app.blueprint import open_models
from switchyard.app.config import Settings
from tests.contract import Witness

LOCAL = {"REMOTE_ADDR": "127.0.0.1"}
CHAT = {"messages": [{"role": "user", "content": "a"}]}
TEXT = {"prompt": "a", "max_tokens": 4}
# What needs its tokenizer, or a load.
ASKED = {
    "/v1/completions": TEXT,
    "/v1/chat/completions": CHAT,
    "/v1/responses": {"input": "a"},
    "/v1/messages": {**CHAT, "max_tokens": 4},
    "/v1/messages/count_tokens": CHAT,
    "/v1/chat/completions/input_tokens": CHAT,
    "/v1/responses/input_tokens": {"input": "a"},
    "/tokenize": {"content": "a"},
    "/detokenize": {"tokens": [5]},
    "/apply-template": CHAT,
    "/completion": {"prompt": "a"},
    "/v1/token/encode": {"text": "a"},
    "/v1/token/decode": {"tokens": [5]},
    "/api/v1/generate": {"prompt": "a"},
    "/api/chat": CHAT,
    "/api/generate": {"prompt": "a"},
    "/api/show": {},
    "/api/extra/tokencount": {"prompt": "a"},
    "/v1/internal/encode": {"text": "a"},
    "/v1/internal/decode": {"tokens": [5]},
    "/v1/internal/token-count": {"text": "a"},
    "/models/load": {"model": "broken"},
    "/admin/models/broken": {},
    "/v1/model/load": {"name": "broken"},
}
LISTS = [
    *("/v1/models", "/v1/models/broken", "/v1/model/list", "/v1/lora", "/v1/template/list"),
    *("/v1/status", "/metrics", "/health/ready", "/v1/requests", "/api/v1/model"),
    *("/api/tags", "/api/ps"),
]


@pytest.fixture(scope="module")
def client(model_path, tmp_path_factory):
    ignored = shutil.ignore_patterns("tokenizer.json")
    path = shutil.copytree(model_path, tmp_path_factory.mktemp("models") / "model", ignore=ignored)
    tables = [{"name": "broken", "model": str(path), "load": "demand"}]
    settings = Settings(models=tables)
    models = open_models(settings)
    models.start()
    app = create_app(settings, models)
    witness = Witness()
    app.after_request(witness)
    yield app.test_client()
    assert models.close(timeout=20)
    assert witness.faults == []


def test_what_needs_the_model_is_a_503_with_the_reason(client):
    for path, body in ASKED.items():
        response = client.post(path, json=body, environ_base=LOCAL)
        assert response.status_code == 503, (path, response.text)
        assert "has no tokenizer.json" in response.text, path


@pytest.mark.parametrize("path", LISTS)
def test_what_lists_models_lists_it(client, path):
    response = client.get(path, environ_base=LOCAL)
    assert response.status_code == 200, response.text


def test_the_status_of_a_model_that_never_ran_claims_no_numbers(client):
    [told] = client.get("/v1/status").json["models"]
    assert told["last_iteration_age"] >= 0 and told["max_pending"] > 0
    assert told.keys() >= {"progress", "max_batch_size"}
    assert told["tokens_per_second"] == told["prompt_tokens_per_second"] == 0
    assert (told["iteration_ms"], told["draft_acceptance"], told["gpus"]) == (None, None, [])
    assert (told["recoveries"], told["running"], told["waiting"]) == (0, 0, 0)
    assert not told.keys() & {"max_seq_len", "cache_mode", "pages"}


def test_a_model_that_cannot_be_loaded_has_no_progress_of_its_load(client):
    lines = client.get("/metrics", environ_base=LOCAL).text.splitlines()
    assert 'switchyard_model_load_progress{model_name="broken"} 0.0' in lines
