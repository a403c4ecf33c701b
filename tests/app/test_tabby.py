"""TabbyAPI's own routes, over a scripted backend."""

import pytest

from switchyard.app.formats.tabby.parse import ModelLoad
from switchyard.app.request.validation import validate
from switchyard.engine.messages import ModelInfo
from tests.scripted import ScriptedBackend

PARAMETERS = {"max_seq_len": 2048, "cache_size": 16384, "cache_mode": "Q6", "max_batch_size": 3}


@pytest.fixture
def client(make_client):
    info = ModelInfo(2048, 4096, 256, 64, "scripted", cache_mode="Q6")
    return make_client(ScriptedBackend(info=info), max_batch_size=3)


def test_the_model_s_card_tells_context_cache_and_template(client):
    card = client.get("/v1/model").json
    assert (card["id"], card["object"], card["owned_by"]) == ("scripted", "model", "switchyard")
    assert card["parameters"].items() >= PARAMETERS.items()
    template = client.models.get().model_dir.chat_template
    assert template and card["parameters"]["prompt_template_content"] == template
    name = card["parameters"]["prompt_template"]
    assert client.get("/v1/template/list").json == {"object": "list", "data": [name]}


def test_the_card_tells_the_settings_that_the_model_was_loaded_with(make_client):
    settings = {"rope_scale": 2.0, "rope_alpha": 1.5, "max_chunk_size": 512}
    client = make_client(ScriptedBackend(), **settings)
    told = client.get("/v1/model").json["parameters"]
    assert (told["rope_scale"], told["rope_alpha"], told["chunk_size"]) == (2.0, 1.5, 512)
    assert told["use_vision"] is False


@pytest.mark.parametrize(("mode", "called"), [("float16", "FP16"), ("float32", "FP32")])
def test_a_cache_is_called_as_tabbyapi_calls_it(make_client, mode, called):
    info = ModelInfo(2048, 4096, 256, 64, "scripted", cache_mode=mode)
    client = make_client(ScriptedBackend(info=info))
    assert client.get("/v1/model").json["parameters"]["cache_mode"] == called


def test_a_load_has_its_settings_by_their_names():
    for asked, settings in (
        ({"draft": {}}, {}),  # without a name: the model's own
        ({"cache_size": 4096, "chunk_size": 512}, {"cache_tokens": 4096, "max_chunk_size": 512}),
    ):
        assert validate(ModelLoad, {"name": "x", **asked}).settings == settings


def test_the_list_is_there_while_the_model_loads(loading):
    client = loading()
    assert client.get("/v1/model").status_code == 503
    [card] = client.get("/v1/model/list").json["data"]
    assert card["id"] == "scripted" and "parameters" not in card


def test_a_model_without_a_template_has_none(make_client, with_template):
    client = make_client(ScriptedBackend(), path=with_template(None))
    assert client.get("/v1/template/list").json["data"] == []
    assert client.get("/v1/model").json["parameters"]["prompt_template"] is None


@pytest.mark.parametrize("path", ["/v1/lora", "/v1/lora/list"])
def test_the_model_s_loras_are_named(make_client, tmp_path, path):
    loras = [{"path": str(tmp_path), "name": "style", "scaling": 0.5}]
    client = make_client(ScriptedBackend(), loras=loras)
    [lora] = client.get(path).json["data"]
    assert (lora["id"], lora["object"], lora["scaling"]) == ("style", "lora", 0.5)
    assert str(tmp_path) not in client.get(path).text
    assert make_client(ScriptedBackend()).get(path).json["data"] == []


def test_an_operator_is_told_so(client):
    assert client.get("/v1/auth/permission").json == {"permission": "admin"}
    for more in ({"environ_overrides": {"REMOTE_ADDR": "10.0.0.1"}}, {"headers": {"Via": "proxy"}}):
        assert client.get("/v1/auth/permission", **more).json == {"permission": "api"}


@pytest.mark.parameter("text", "/v1/token/encode")
@pytest.mark.parameter("tokens", "/v1/token/decode")
def test_tokens_of_a_text_are_its_text_again(client):
    body = client.post(
        "/v1/token/encode", json={"text": "Hello there", "add_bos_token": False}
    ).json
    assert body["length"] == len(body["tokens"]) > 1
    decoded = client.post("/v1/token/decode", json={"tokens": body["tokens"]}).json
    assert decoded == {"text": "Hello there"}


@pytest.mark.parameter("add_bos_token", "encode_special_tokens", "/v1/token/encode")
@pytest.mark.parameter("decode_special_tokens", "/v1/token/decode")
def test_special_tokens_count_unless_told_otherwise(client):
    tokenizer = client.models.get().tokenizer
    tokenizer._bos_ids = [tokenizer.tag_ids["<|im_start|>"]]
    [bos], end = tokenizer._bos_ids, tokenizer.tag_ids["<|im_end|>"]

    def encode(**more):
        text = {"text": "x<|im_end|>", "decode_special_tokens": False, **more}
        return client.post("/v1/token/encode", json=text).json["tokens"]

    assert encode()[0] == bos and encode()[-1] == end
    assert encode(add_bos_token=False) == encode()[1:]
    assert end not in encode(encode_special_tokens=False)
    tokens = {"tokens": encode(), "add_bos_token": False, "encode_special_tokens": True}
    assert client.post("/v1/token/decode", json=tokens).json["text"] == "<|im_start|>x<|im_end|>"
    tokens["decode_special_tokens"] = False
    assert client.post("/v1/token/decode", json=tokens).json["text"] == "x"


def test_what_this_server_does_not_do_is_a_501_with_words(client):
    response = client.post("/v1/download", json={"name": "other"})
    assert response.status_code == 501
    assert response.json["error"]["message"].startswith("this server ")
    assert response.headers["x-should-retry"] == "false"
