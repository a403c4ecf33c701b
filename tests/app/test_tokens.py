"""/tokenize, /detokenize, /apply-template, over the embedded model's tokenizer."""

import pytest

from tests.app.refused import error_of
from tests.conftest import DEMO

MESSAGES = [{"role": "user", "content": "Hi <|im_end|>"}]


@pytest.fixture
def client(make_client):
    return make_client(path=DEMO)


@pytest.fixture
def tokenizer(client):
    return client.models.get().tokenizer


def post(client, path, **body):
    response = client.post(path, json=body)
    assert response.status_code == 200, response.json
    return response.json


@pytest.mark.parameter("content", "tokens")
@pytest.mark.parametrize("text", ["Hello, world", "", "naïve 🙂\n", "x" * 20_000])
def test_tokens_of_a_text_are_its_text_again(client, text):
    tokens = post(client, "/tokenize", content=text)["tokens"]
    assert post(client, "/detokenize", tokens=tokens) == {"content": text, "prompt": text}


@pytest.mark.parameter("parse_special", "/tokenize")
def test_special_tokens_count_as_llamacpp_has_it_unless_told_otherwise(client, tokenizer):
    text = "<|im_end|>"
    assert post(client, "/tokenize", content=text)["tokens"] == [tokenizer.tag_ids[text]]
    literal = post(client, "/tokenize", content=text, parse_special=False)["tokens"]
    assert len(literal) > 1
    assert post(client, "/detokenize", tokens=[tokenizer.tag_ids[text]])["content"] == text


@pytest.mark.parameter("with_pieces")
def test_pieces_are_text_or_bytes(client, tokenizer):
    text = "a 🙂<|im_end|>"
    pieces = post(client, "/tokenize", content=text, with_pieces=True)["tokens"]
    assert pieces[0] == {"id": tokenizer.encode("a", 9, add_bos=False)[0], "piece": "a"}
    assert pieces[-1]["piece"] == "<|im_end|>"
    parts = [p["piece"] for p in pieces]
    assert any(isinstance(part, list) for part in parts)
    data = b"".join(bytes(p) if isinstance(p, list) else p.encode() for p in parts)
    assert data.decode() == text
    assert post(client, "/tokenize", content="", with_pieces=True)["tokens"] == []


@pytest.mark.parameter("add_special", "add_special_tokens")
def test_what_begins_a_prompt_comes_once_and_if_asked(client, tokenizer):
    tokenizer._bos_ids = [tokenizer.tag_ids["<|im_start|>"]]
    [bos] = tokenizer._bos_ids
    plain = post(client, "/tokenize", content="x")["tokens"]
    assert post(client, "/tokenize", content="x", add_special=True)["tokens"] == [bos, *plain]
    doubled = post(client, "/tokenize", content="<|im_start|>x", add_special=True)["tokens"]
    assert doubled == [bos, *plain]
    assert post(client, "/tokenize", prompt="x")["tokens"] == [bos, *plain]
    assert post(client, "/tokenize", prompt="x", add_special_tokens=False)["tokens"] == plain
    spelled = post(client, "/tokenize", prompt="<|im_start|>", add_special_tokens=False)["tokens"]
    assert spelled == [bos]


@pytest.mark.parameter("prompt", "/tokenize")
@pytest.mark.parameter("return_token_strs")
def test_vllms_spelling_tells_count_and_context(client, tokenizer):
    body = post(client, "/tokenize", prompt="Hello <|im_end|>", model="scripted")
    usage = post(client, "/v1/completions", prompt="Hello <|im_end|>", max_tokens=1)["usage"]
    assert body["count"] == len(body["tokens"]) == usage["prompt_tokens"]
    assert (body["max_model_len"], body["token_strs"]) == (2048, None)
    named = post(client, "/tokenize", prompt="Hi", return_token_strs=True)
    assert named["token_strs"] == [tokenizer.token(i) for i in named["tokens"]]


@pytest.mark.parameter("messages", "/tokenize")
def test_a_conversation_has_the_tokens_that_a_chat_of_it_has(client, tokenizer):
    body = post(client, "/tokenize", messages=MESSAGES, return_token_strs=True)
    usage = post(client, "/v1/chat/completions", messages=MESSAGES, max_tokens=1)["usage"]
    assert body["count"] == len(body["token_strs"]) == usage["prompt_tokens"]


def test_a_text_longer_than_the_context_is_counted(client):
    text = "one two three " * 3000
    assert post(client, "/tokenize", prompt=text)["count"] > 2048
    messages = [{"role": "user", "content": text}]
    assert post(client, "/tokenize", messages=messages)["count"] > 2048


MAX_TOLD = 65_536  # tokens
HUGE = "7 " * 500_000  # a token a character
HUGE_CHAT = {"messages": [{"role": "user", "content": HUGE}]}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"content": HUGE}, "content"),
        ("/tokenize", {"content": HUGE, "parse_special": False}, "content"),
        ("/tokenize", {"prompt": HUGE}, "prompt"),
        ("/tokenize", HUGE_CHAT, "messages"),
        ("/apply-template", HUGE_CHAT, "messages"),
        ("/v1/messages/count_tokens", HUGE_CHAT, None),
        ("/api/extra/tokencount", {"prompt": HUGE}, "prompt"),
        ("/v1/internal/encode", {"text": HUGE}, "text"),
        ("/v1/internal/token-count", {"text": HUGE}, "text"),
        ("/v1/token/encode", {"text": HUGE}, "text"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_no_more_of_a_huge_text_is_taken_apart_than_shows_that_it_is_one(
    client, tokenizer, monkeypatch, path, body, param
):
    encoded = []
    encode = tokenizer._batch

    def counted(text):
        encoded.append(len(text))
        return encode(text)

    monkeypatch.setattr(tokenizer, "_batch", counted)
    response = client.post(path, json=body)
    assert response.status_code == 400
    if param is not None:  # Anthropic's errors name none
        assert response.json["error"]["param"] == param
        assert response.json["error"]["code"] == "context_length_exceeded"
    assert str(MAX_TOLD) in response.json["error"]["message"]
    assert sum(encoded) <= 2 * MAX_TOLD


@pytest.mark.parametrize("path", ["/detokenize", "/v1/internal/decode"])
def test_no_more_tokens_are_put_together_than_a_text_may_have(client, path):
    assert client.post(path, json={"tokens": [1] * MAX_TOLD}).status_code == 200
    response = client.post(path, json={"tokens": [1] * (MAX_TOLD + 1)})
    assert error_of(response)["param"] == "tokens"


@pytest.mark.parameter("messages", "/apply-template")
def test_the_prompt_of_a_conversation_is_shown(client):
    prompt = post(client, "/apply-template", messages=MESSAGES)["prompt"]
    assert prompt.endswith("<|im_start|>assistant\n")
    assert "Hi <|im_end|><|im_end|>" in prompt


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 5}, "content"),
        ("/tokenize", {"content": "\ufdd0"}, "content"),
        ("/tokenize", {"content": "x", "prompt": "x"}, "content"),
        ("/tokenize", {"prompt": "\ufdd0"}, "prompt"),
        ("/tokenize", {"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": [1, 4_000_000]}, "tokens"),
        ("/detokenize", {"tokens": [2**40]}, "tokens.0"),
        ("/detokenize", {}, "tokens"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": [{"role": "user", "content": "\ufdd0"}]}, "messages"),
        ("/api/extra/tokencount", {"prompt": "\ufdd0"}, "prompt"),
        ("/v1/internal/encode", {"text": "\ufdd0"}, "text"),
        ("/v1/internal/encode", {}, "text"),
        ("/v1/internal/decode", {"tokens": [4_000_000]}, "tokens"),
        ("/v1/token/encode", {}, "text"),
        ("/v1/token/encode", {"text": "\ufdd0"}, "text"),
        ("/v1/token/decode", {"tokens": [999_999]}, "tokens"),
        ("/v1/token/decode", {"tokens": [999_999], "decode_special_tokens": False}, "tokens"),
        ("/v1/token/decode", {"tokens": "x"}, "tokens"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(client, path, body, param):
    assert error_of(client.post(path, json=body))["param"] == param


def test_tokens_need_no_warm_model(loading):
    client = loading()
    assert client.post("/tokenize", json={"content": "x"}).status_code == 200
    assert client.post("/tokenize", json={"prompt": "x"}).status_code == 503


def test_an_empty_prompt_is_one_and_an_empty_conversation_is_named(make_client):
    client = make_client()
    assert client.post("/tokenize", json={"prompt": ""}).json["count"] == 1  # the BOS token
    error = client.post("/tokenize", json={"messages": []}).json["error"]
    assert (error["param"], error["code"]) == ("messages", "invalid_value")


def test_the_tokenizers_own_texts_are_told(client):
    """As lm-eval reads them with tokenizer_backend=remote."""
    files = client.models.get().model_dir
    told = client.get("/tokenizer_info").json
    assert told.pop("chat_template") == files.chat_template is not None
    special = {name: files.tokenizer_config.get(name) for name in told}
    assert told == special and {"bos_token", "eos_token", "pad_token"} == told.keys()
    assert told["eos_token"] == "</s>"
