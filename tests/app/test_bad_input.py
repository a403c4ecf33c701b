"""What a client gets for what it does wrong: its parameter's name, before any work."""

import gzip
import io
import json
import re

import pytest

from switchyard import engine
from switchyard.app import errors
from switchyard.app.chat.request import chat
from switchyard.app.exceptions import BadRequest
from switchyard.app.formats.openai import parse
from tests.growth import assert_within
from tests.scripted import Gate, ScriptedBackend, count

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MANY = {f"a{i}": 0 for i in range(60_000)}


def error_of(response, status=400):
    assert response.status_code == status
    assert response.mimetype == "application/json"
    error = response.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": [1, "x"]}, "prompt"),
        ({"prompt": [1, -1]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [4096]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"max_tokens": "10"}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 128}, "n"),  # more jobs than the engine holds
        ({"prompt": ["x"] * 97}, "prompt"),
        ({"prompt": ["x"] * 40, "n": 3}, "prompt"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 1e9}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": float("inf")}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"presence_penalty": -3}, "presence_penalty"),
        ({"stop": ""}, "stop"),
        ({"stop": "x" * 1001}, "stop"),
        ({"stop": ["a", ""]}, "stop.1"),
        ({"stop": 7}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids.0"),
        ({"stop_token_ids": [4096]}, "stop_token_ids"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 17}, "min_tokens"),  # more than max_tokens, 16
        ({"ignore_eos": "yes"}, "ignore_eos"),
        ({"seed": 2**63}, "seed"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
        ({"echo": "yes"}, "echo"),
        ({"model": 5}, "model"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"return_tokens_as_token_ids": True}, "return_tokens_as_token_ids"),
        ({"best_of": 0}, "best_of"),
        ({"best_of": 2, "n": 3}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 128}, "best_of"),  # more jobs than the engine holds
        ({"prompt": ["x"] * 40, "best_of": 3}, "prompt"),
        ({"suffix": "x"}, "suffix"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"05": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": "1"}}, "logit_bias"),
        ({"logit_bias": {"5": None}}, "logit_bias"),
        ({"logit_bias": [[5, 1]]}, "logit_bias"),
        ({"logit_bias": {"4096": 1}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"no_such_thing": 1}, "no_such_thing"),
        ({"messages": []}, "messages"),
    ],
)
def test_a_bad_completion_is_refused_by_the_parameters_name(make_client, change, param):
    backend = ScriptedBackend()
    response = make_client(backend).post(COMPLETIONS, json={"prompt": "x", **change})
    error = error_of(response)
    assert error["param"] == param
    assert param.split(".")[0] in error["message"] or "more than the 96 jobs" in error["message"]
    assert not backend.enqueued


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": ["hello"]}, "messages.0"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "emperor", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "text": "x"}]}]},
            "messages.0.content.0",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]},
            "messages.0.tool_calls.0",
        ),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"return_tokens_as_token_ids": True}, "return_tokens_as_token_ids"),
        ({"best_of": 2}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 513}, "min_tokens"),  # more than the default of max_tokens
        ({"messages": [{"role": "user", "content": "a\ufdd0b"}]}, "messages"),
        ({"prompt": "x"}, "prompt"),
    ],
)
def test_a_bad_chat_is_refused_by_the_parameters_name(make_client, change, param):
    backend = ScriptedBackend()
    request = {"messages": [{"role": "user", "content": "x"}], **change}
    error = error_of(make_client(backend).post(CHAT, json=request))
    assert error["param"] == param
    assert not backend.enqueued


def test_values_that_ask_for_nothing_are_taken(make_client):
    request = {
        "messages": [
            {"role": "assistant", "content": "x", "refusal": None, "tool_calls": []},
            {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": None}]},
        ],
        "max_tokens": 1,
        "tools": None,
        "logprobs": False,
        "response_format": {"type": "text"},
        "logit_bias": {},
        "stream": True,
        "stream_options": {"include_usage": None, "include_obfuscation": False},
        "stop": None,
        "n": None,
    }
    assert make_client(ScriptedBackend()).post(CHAT, json=request).status_code == 200


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b'{"prompt": "x"',
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "\\ud800"}',
        b"[" * 100_000,
        b'{"prompt": "x", "max_tokens": 1' + b"0" * 5000 + b"}",
    ],
)
def test_a_body_that_is_no_json_object_is_refused(make_client, data):
    client = make_client(ScriptedBackend())
    error_of(client.post(COMPLETIONS, data=data, content_type="application/json"))


def test_a_byte_order_mark_before_the_body_is_passed_over(make_client):
    data = b'\xef\xbb\xbf{"prompt": "x", "max_tokens": 1}'
    client = make_client(ScriptedBackend())
    response = client.post(COMPLETIONS, data=data, content_type="application/json")
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("url", "body", "param"),
    [
        (COMPLETIONS, {"prompt": [1.5] * 60_000}, "prompt"),
        (COMPLETIONS, {"prompt": "x", **MANY}, "a0"),
        (COMPLETIONS, {"prompt": "x", "stop_token_ids": ["x"] * 60_000}, "stop_token_ids.0"),
        (COMPLETIONS, {"prompt": "x", "p" * 1_000_000: 0}, "p" * 100),
        (COMPLETIONS, {"prompt": "x", "logit_bias": MANY}, "logit_bias"),
        (COMPLETIONS, {"prompt": "x", "stream": True, "stream_options": MANY}, "stream_options.a0"),
        (CHAT, {"messages": [1] * 2048}, "messages.0"),
        (CHAT, {"messages": [{"role": "user", "content": "x"}] * 2049}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [5] * 10_000}]}, "messages.0.content.0"),
        (CHAT, {"messages": [{"role": "user", "content": [5] * 10_001}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [5] * 101}] * 100}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": "x", **MANY}]}, "messages.0.a0"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", **MANY}]}]},
            "messages.0.content.0.a0",
        ),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_great_many_mistakes_are_answered_for_the_first(make_client, url, body, param):
    error = error_of(make_client(ScriptedBackend()).post(url, json=body))
    assert error["param"] == param
    assert len(error["message"]) < 300
    with pytest.raises(BadRequest) as caught:
        (chat if url == CHAT else parse.completion)(body)
    cause = caught.value.__context__  # what lists all of them takes the longer
    assert cause is None or cause.error_count() <= 100


def values(number):
    """A body of so many."""
    return b'{"prompt": [' + b"5," * (number - 3) + b"5]}"


@pytest.mark.parametrize("max_body_bytes", [1 << 20, 1 << 21])
def test_a_body_of_more_values_than_any_use_has_is_refused_unread(
    make_client, monkeypatch, max_body_bytes
):
    client = make_client(ScriptedBackend(), max_body_bytes=max_body_bytes)
    limit = max(100_000, max_body_bytes // 10)

    def post(data):
        return error_of(client.post(COMPLETIONS, data=data, content_type="application/json"))

    assert post(values(limit))["code"] == "context_length_exceeded"
    monkeypatch.setattr("pydantic_core.from_json", None)
    for data in (
        values(limit + 2),
        b"[" * (limit + 1),
        b"{" * (limit + 1),
        b'["' + b'","' * (limit + 1),
        b'"' * (4 * limit + 1) + b"," * (limit + 1),
    ):
        error = post(data)
        assert str(limit) in error["message"], data[:20]


@pytest.mark.parametrize("text", [",[{", '",[{', "\\,[", '\\",{', "\\\\\\,", '\\\\"[', '"'])
def test_what_a_text_has_of_commas_and_brackets_is_free(make_client, text):
    client = make_client(ScriptedBackend())
    body = {"stop": ["\\"], "prompt": [1], "user": (text + ",,,,") * 50_000, "max_tokens": 1}
    assert client.post(COMPLETIONS, json=body).status_code == 200


@pytest.mark.one_way
@pytest.mark.parametrize(
    "body",
    [
        lambda n: {"prompt": [1.5] * n},
        lambda n: {"prompt": [5] * n},
        lambda n: {"prompt": [[5]] * (n // 2)},
        lambda n: {"prompt": "x", "stop": ["x"] * n},
        lambda n: {f"a{i}": 0 for i in range(n)},
        lambda n: {"messages": [{"role": "user", "content": [5] * n}]},
        lambda n: {"prompt": 'x\n"' * n},
    ],
    ids=["floats", "ids", "lists", "stop", "names", "parts", "text"],
)
def test_a_body_of_twice_the_values_takes_about_twice_the_time(make_client, body):
    client = make_client(ScriptedBackend())

    def post(number):
        data = json.dumps(body(number)).encode()
        url = CHAT if b"messages" in data[:20] else COMPLETIONS

        def work():
            assert client.post(url, data=data, content_type="application/json").status_code == 400

        return work

    assert_within(3, post(80_000), post(40_000))


class Panicking:
    """A library in Rust that has a fault."""

    class Panic(BaseException):
        pass

    def __getattr__(self, name):
        raise self.Panic("at a text")


@pytest.mark.parametrize(
    ("url", "body", "param"),
    [
        (COMPLETIONS, {"prompt": "x"}, "prompt"),
        (COMPLETIONS, {"prompt": [1], "cfg_scale": 2, "negative_prompt": "x"}, "negative_prompt"),
        (
            COMPLETIONS,
            {"prompt": [1], "dry_multiplier": 1, "dry_sequence_breakers": ["no such token"]},
            "dry_sequence_breakers",
        ),
        (CHAT, {"messages": [{"role": "user", "content": "x"}]}, "messages"),
        ("/tokenize", {"content": "x"}, "content"),
        ("/detokenize", {"tokens": []}, "tokens"),
        ("/v1/internal/encode", {"text": "x"}, "text"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_the_tokenizer_panics_at_is_named(make_client, monkeypatch, url, body, param):
    client = make_client(ScriptedBackend())
    tokenizer = client.models.get().tokenizer
    assert tokenizer.vocabulary  # which is read at its first use
    monkeypatch.setattr(tokenizer, "_special", Panicking())
    monkeypatch.setattr(tokenizer, "_literal", Panicking())
    error = error_of(client.post(url, json=body))
    assert error["param"] == param and "tokenizer" in error["message"]


def test_another_content_type_is_refused(make_client):
    client = make_client(ScriptedBackend())
    error = error_of(client.post(COMPLETIONS, data={"prompt": "x"}), 415)
    assert "application/json" in error["message"]
    assert error_of(client.post(COMPLETIONS, data=b"{}"))["param"] == "prompt"  # without one
    error = error_of(client.post(COMPLETIONS, data=b"prompt"))
    assert error["code"] == "invalid_json"
    page = {"Origin": "https://example.org"}  # of which a browser asks nobody
    error_of(client.post(COMPLETIONS, data=b'{"prompt": "x"}', headers=page), 403)


def test_a_body_over_the_limit_is_refused(make_client):
    client = make_client(ScriptedBackend(), max_body_bytes=1000)
    error = error_of(client.post(COMPLETIONS, json={"prompt": "x" * 1000}), 413)
    assert "1000 bytes" in error["message"]


@pytest.mark.parametrize("length", [1000, 1001])
def test_a_body_in_chunks_is_taken_whole_or_refused(make_client, length):
    client = make_client(ScriptedBackend(count), max_body_bytes=1000)
    body = {"prompt": "x", "max_tokens": 1}
    response = client.post(
        COMPLETIONS,
        input_stream=io.BytesIO(json.dumps(body).ljust(length).encode()),
        content_type="application/json",
        environ_overrides={
            "wsgi.input_terminated": True,
            "CONTENT_LENGTH": "",
            "HTTP_TRANSFER_ENCODING": "chunked",
        },
    )
    assert response.status_code == (200 if length == 1000 else 413)


def test_a_compressed_body_is_refused_by_its_coding(make_client):
    client = make_client(ScriptedBackend(count))
    data = gzip.compress(b'{"prompt": "x"}')
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    error = error_of(client.post(COMPLETIONS, data=data, headers=headers), 415)
    assert "Content-Encoding: gzip" in error["message"]


@pytest.mark.parameter("model")
def test_an_unknown_model_is_named(make_client):
    client = make_client(ScriptedBackend())
    error = error_of(client.post(COMPLETIONS, json={"prompt": "x", "model": "gpt"}), 404)
    assert error["code"] == "model_not_found" and "'gpt'" in error["message"]
    assert error["param"] == "model"
    error_of(client.get("/v1/models/gpt"), 404)


def test_a_prompt_longer_than_the_context_is_refused(make_client):
    client = make_client(ScriptedBackend(), clamp_max_tokens=False)
    error = error_of(client.post(COMPLETIONS, json={"prompt": "word " * 100_000}))
    assert error["code"] == "context_length_exceeded" and "2048" in error["message"]
    assert error["param"] == "prompt"
    # It isn't read to its end.
    assert re.search(r"the prompt has at least \d+ tokens", error["message"])
    error = error_of(client.post(COMPLETIONS, json={"prompt": "a b c d " * 1500}))
    assert re.search(r"the prompt has \d+ tokens", error["message"])
    error = error_of(client.post(COMPLETIONS, json={"prompt": [1] * 2040, "max_tokens": 9}))
    assert (
        error["code"] == "context_length_exceeded"
        and "2040 in the prompt, 9 in" in error["message"]
    )
    assert error["param"] == "max_tokens"
    for limit, content, param in [
        ("max_tokens", "x", "max_tokens"),
        ("max_completion_tokens", "x", "max_completion_tokens"),
        ("max_completion_tokens", "word " * 5000, "messages"),
    ]:
        messages = [{"role": "user", "content": content}]
        error = error_of(client.post(CHAT, json={"messages": messages, limit: 2048}))
        assert (error["code"], error["param"]) == ("context_length_exceeded", param)


def test_unknown_paths_and_methods_are_refused_in_the_same_shape(make_client):
    client = make_client(ScriptedBackend())
    error_of(client.get("/v1/nothing"), 404)
    response = client.get(COMPLETIONS)
    error_of(response, 405)
    assert "POST" in response.headers["Allow"]


def test_embeddings_are_not_offered_and_it_is_no_use_to_try_again(make_client):
    client = make_client(ScriptedBackend())
    response = client.post("/v1/embeddings", json={"model": "scripted", "input": "x"})
    assert "embeddings" in error_of(response, 501)["message"]
    assert response.headers["x-should-retry"] == "false"
    error_of(client.get("/v1/embeddings"), 405)


def test_an_unexpected_failure_is_a_500_in_the_same_shape(make_client, caplog):
    client = make_client(ScriptedBackend())
    client.models.lease = lambda *_: 1 / 0
    error = error_of(client.post(COMPLETIONS, json={"prompt": "x"}), 500)
    assert error["type"] == "server_error" and "ZeroDivisionError" not in error["message"]
    assert "ZeroDivisionError" in caplog.text


def test_a_full_server_answers_429_with_retry_after(make_client):
    gate = Gate()
    client = make_client(ScriptedBackend(gate=gate), max_batch_size=1, max_pending=0)
    stream = client.models.get().submit([engine.Job("a", (1,), 1)])
    response = client.post(COMPLETIONS, json={"prompt": "x"})
    error = error_of(response, 429)
    assert error["type"] == "rate_limit_error" and error["code"] == "queue_full"
    assert int(response.headers["Retry-After"]) >= 1
    gate.open()
    while not stream.is_finished:
        assert stream.take(20)


def test_a_server_that_loads_answers_503_with_retry_after(make_client):
    backend = ScriptedBackend()
    backend.opening.clear()
    client = make_client(backend, wait=False)
    response = client.post(COMPLETIONS, json={"prompt": "x"})
    assert error_of(response, 503)["message"] == "model scripted is loading"
    assert "Retry-After" in response.headers
    backend.opening.set()


def test_every_engine_error_has_a_status():
    from switchyard.app.errors import KINDS

    def leaves(kind):
        subclasses = kind.__subclasses__()
        return [leaf for sub in subclasses for leaf in leaves(sub)] if subclasses else [kind]

    assert all(not KINDS.keys().isdisjoint(leaf.__mro__) for leaf in leaves(engine.EngineError))


@pytest.mark.parametrize(("seconds", "header"), [(0.1, "1"), (7.2, "8"), (1000.0, "120")])
def test_retry_after_is_the_engines_estimate_within_what_clients_obey(seconds, header):
    for kind, status in ((engine.Full, 429), (engine.Loading, 503), (engine.Draining, 503)):
        described, _ = errors.describe(kind("not now", seconds))
        assert described.status == status
        assert described.headers == {"Retry-After": header}


@pytest.mark.parametrize(
    ("url", "body", "name", "hint"),
    [
        ("/v1/completions", {"prompt": "x"}, "temprature", "; did you mean temperature?"),
        ("/v1/chat/completions", {"messages": []}, "maxTokens", "; did you mean max_tokens?"),
        ("/v1/messages", {"messages": []}, "stop_sequence", "; did you mean stop_sequences?"),
        ("/v1/completions", {"prompt": "x"}, "colour", ""),
    ],
)
def test_an_unknown_parameter_is_told_with_the_known_one_that_is_nearest(
    make_client, url, body, name, hint
):
    response = make_client(ScriptedBackend()).post(url, json={**body, name: 1})
    assert response.status_code == 400
    assert response.json["error"]["message"] == f"unknown parameter: {name}{hint}"
