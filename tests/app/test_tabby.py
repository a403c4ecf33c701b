"""TabbyAPI's own routes, and what its users ask of others, over a scripted backend."""

import pytest

from switchyard.app.formats.tabby.parse import ModelLoad
from switchyard.app.request.validation import validate
from switchyard.engine.messages import ModelInfo
from tests.app.conftest import frames
from tests.app.refused import CHAT, COMPLETIONS
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
    client = make_client(**settings)
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
    client = make_client(path=with_template(None))
    assert client.get("/v1/template/list").json["data"] == []
    assert client.get("/v1/model").json["parameters"]["prompt_template"] is None


@pytest.mark.parametrize("path", ["/v1/lora", "/v1/lora/list"])
def test_the_model_s_loras_are_named(make_client, tmp_path, path):
    loras = [{"path": str(tmp_path), "name": "style", "scaling": 0.5}]
    client = make_client(loras=loras)
    [lora] = client.get(path).json["data"]
    assert (lora["id"], lora["object"], lora["scaling"]) == ("style", "lora", 0.5)
    assert str(tmp_path) not in client.get(path).text
    assert make_client().get(path).json["data"] == []


def test_an_operator_is_told_so(client):
    assert client.get("/v1/auth/permission").json == {"permission": "admin"}
    for more in ({"environ_overrides": {"REMOTE_ADDR": "10.0.0.1"}}, {"headers": {"Via": "proxy"}}):
        assert client.get("/v1/auth/permission", **more).json == {"permission": "api"}


@pytest.mark.parameter("text", "/v1/token/encode")
@pytest.mark.parameter("tokens", "/v1/token/decode")
def test_tokens_of_a_text_are_its_text_again(client):
    got = client.post("/v1/token/encode", json={"text": "Hello there", "add_bos_token": False}).json
    assert got["length"] == len(got["tokens"]) > 1
    decoded = client.post("/v1/token/decode", json={"tokens": got["tokens"]}).json
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


# Requests as users of TabbyAPI send them, written from its public documentation and what its users
# say of it, November 2026: each is answered, and what is told is known.

# All samplers at the values at which they do nothing.
OFF = {
    **{"temperature": 1.0, "temperature_last": True, "min_temp": 1.0, "max_temp": 1.0},
    **{"temp_exponent": 1.0, "smoothing_factor": 0.0, "smoothing_curve": 1.0},
    **{"top_k": 0, "top_p": 1.0, "top_a": 0.0, "min_p": 0.0, "tfs": 1.0, "typical": 1.0},
    **{"skew": 0.0, "xtc_probability": 0.0, "xtc_threshold": 0.1},
    **{"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0},
    **{"penalty_range": -1, "repetition_decay": 0},
    **{"dry_multiplier": 0.0, "dry_base": 0.0, "dry_allowed_length": 0, "dry_range": 0},
    **{"dry_sequence_breakers": [], "mirostat_mode": 0, "mirostat_tau": 1.5, "mirostat_eta": 0.3},
    **{"add_bos_token": True, "ban_eos_token": False, "logit_bias": {}, "cfg_scale": 1.0},
    **{"negative_prompt": "", "speculative_ngram": False, "token_healing": False},
    **{"banned_tokens": [], "banned_strings": [], "allowed_tokens": [], "stop": []},
    **{"json_schema": {}, "regex_pattern": "", "grammar_string": ""},
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "The weather in a city.", "parameters": CITY}
TOOL = {"type": "function", "function": WEATHER}
ASK = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the weather in Paris?"},
]
REQUESTS = {
    "a completion": (
        COMPLETIONS,
        {
            **{"model": "scripted", "prompt": "Once upon a time", "max_tokens": 4, "min_tokens": 0},
            **{"stream": False, "stop": ["\n\n"], "temperature": 0.8, "top_p": 0.95, "top_k": 40},
            **{"min_p": 0.05, "repetition_penalty": 1.05, "penalty_range": 512, "logprobs": 2},
        },
    ),
    "a stream with every sampler": (
        COMPLETIONS,
        {**OFF, "prompt": "Once", "max_tokens": 4, "stream": True, "stream_options": {}},
    ),
    "a chat": (
        CHAT,
        {
            **{"model": "scripted", "messages": ASK, "max_tokens": 4, "template_vars": {}},
            **{"response_prefix": "", "prompt_template": "", "add_generation_prompt": True},
            **{"n": 1, "user": "x", "stream_options": {"include_usage": True}},
        },
    ),
    "a streamed chat with tools": (
        CHAT,
        {
            **{"messages": ASK, "tools": [TOOL], "tool_choice": "auto", "max_tokens": 4},
            **{"stream": True, "stream_options": {"include_usage": True}, "temperature": 0.0},
        },
    ),
    "a form": (
        COMPLETIONS,
        {
            **{"prompt": "A person as JSON:", "max_tokens": 64, "temperature": 0.0},
            "json_schema": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
                "required": ["name", "age"],
            },
        },
    ),
}
TOLD = {
    "a stream with every sampler": {"add_bos_token", "speculative_ngram"},
    "a chat": {"stream_options", "response_prefix", "prompt_template"},
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_of_a_tabbyapi_user_is_answered(client, name):
    url, body = REQUESTS[name]
    response = client.post(url, json=body)
    assert response.status_code == 200, response.text
    told = response.headers.get("X-Switchyard-Ignored", "")
    assert set(filter(None, told.split(","))) == TOLD.get(name, set())
    if body.get("stream"):
        assert frames(response)


def test_zeros_of_dry_are_taken_while_it_is_off_alone(make_client):
    client = make_client(presets={"dry": {"dry_multiplier": 0.8}})
    for more, status in (
        ({}, 200),
        ({"dry_multiplier": 0.0, "dry_allowed_length": 0}, 200),
        ({"dry_multiplier": 0.8}, 400),
        ({"preset": "dry"}, 400),
        ({"dry_base": 0.5}, 400),
    ):
        response = client.post(CHAT, json={"messages": ASK, "max_tokens": 1, "dry_base": 0, **more})
        assert response.status_code == status, (more, response.text)
