"""A model whose files can't be read, as the default one: what each route answers for it."""

import shutil

import pytest

from switchyard.app import create_app
from switchyard.app.blueprint import open_models
from switchyard.app.config import Settings
from tests.contract import Witness

CHAT = {"messages": [{"role": "user", "content": "a"}]}
TEXT = {"prompt": "a", "max_tokens": 4}
INPUT, PROMPT, TOKENS, A_TEXT = {"input": "a"}, {"prompt": "a"}, {"tokens": [5]}, {"text": "a"}
# What needs its tokenizer, or a load.
CHATS = ("/v1/chat/completions", "/v1/messages/count_tokens", "/apply-template", "/api/chat")
ASKED = {
    "/v1/completions": TEXT,
    **dict.fromkeys((*CHATS, "/v1/chat/completions/input_tokens"), CHAT),
    **dict.fromkeys(("/v1/responses", "/v1/responses/input_tokens"), INPUT),
    "/v1/messages": {**CHAT, "max_tokens": 4},
    "/tokenize": {"content": "a"},
    **dict.fromkeys(("/completion", "/api/v1/generate", "/api/generate"), PROMPT),
    "/api/extra/tokencount": PROMPT,
    **dict.fromkeys(("/detokenize", "/v1/token/decode", "/v1/internal/decode"), TOKENS),
    **dict.fromkeys(("/v1/token/encode", "/v1/internal/encode"), A_TEXT),
    "/v1/internal/token-count": A_TEXT,
    "/api/show": {},
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
        response = client.post(path, json=body)
        assert response.status_code == 503, (path, response.text)
        assert "has no tokenizer.json" in response.text, path


@pytest.mark.parametrize("path", LISTS)
def test_what_lists_models_lists_it(client, path):
    response = client.get(path)
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
    lines = client.get("/metrics").text.splitlines()
    assert 'switchyard_model_load_progress{model_name="broken"} 0.0' in lines
