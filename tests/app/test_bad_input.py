"""What a client gets for a wrong parameter: its name, before any work."""

import re

import pytest

from switchyard.app.chat.request import chat
from switchyard.app.exceptions import BadRequest
from switchyard.app.formats.openai import parse
from tests.app.refused import CHAT, COMPLETIONS, error_of
from tests.scripted import ScriptedBackend

MANY = {f"a{i}": 0 for i in range(60_000)}


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
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": 0}},
            "stream_options.include_obfuscation",
        ),
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
    assert param.split(".")[0] in error["message"] or "exceed the 96 jobs" in error["message"]
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
        ({"messages": [{"role": "user", "content": "x", "images": ["eA=="]}]}, "messages.0"),
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
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"max_tokens": 0},
            "max_tokens: must be at least 1; 0 only scores the prompt, and needs echo: true",
        ),
        (
            {"n_predict": 0},
            "n_predict: must be at least 1; 0 only scores the prompt, and needs echo: true",
        ),
        ({"max_tokens": 0, "suffix": "y"}, "max_tokens: must be at least 1"),  # which echo refuses
    ],
)
def test_a_limit_of_no_tokens_is_told_what_it_needs(make_client, change, message):
    error = error_of(
        make_client(ScriptedBackend()).post(COMPLETIONS, json={"prompt": "x", **change})
    )
    assert error["message"] == message


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
    ("url", "body", "param"),
    [
        (COMPLETIONS, {"prompt": [1.5] * 60_000}, "prompt"),
        (COMPLETIONS, {"prompt": "x", **MANY}, "a0"),
        (COMPLETIONS, {"prompt": "x", "stop_token_ids": ["x"] * 60_000}, "stop_token_ids.0"),
        (COMPLETIONS, {"prompt": "x", "p" * 1_000_000: 0}, "p" * 100),
        (COMPLETIONS, {"prompt": "x", "logit_bias": MANY}, "logit_bias"),
        (COMPLETIONS, {"prompt": "x", "stream": True, "stream_options": MANY}, "stream_options.a0"),
        (
            COMPLETIONS,
            {"prompt": "x", "stream": True, "stream_options": {"p" * 1_000_000: 0}},
            "stream_options." + "p" * 100,
        ),
        (CHAT, {"messages": [{**MANY, "role": "user", "content": "x"}]}, "messages.0.a0"),
        (CHAT, {"messages": [1] * 2048}, "messages.0"),
        (CHAT, {"messages": [{"role": "user", "content": "x"}] * 2049}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [5] * 10_000}]}, "messages.0.content.0"),
        (CHAT, {"messages": [{"role": "user", "content": [5] * 10_001}]}, "messages"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "p" * 1_000_000}]}]},
            "messages.0.content.0",
        ),
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
    assert cause is None or cause.error_count() <= 101


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
        ("/v1/internal/encode", {"text": "x"}, "text"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_the_tokenizer_panics_at_is_named(make_client, monkeypatch, url, body, param):
    client = make_client(ScriptedBackend())
    tokenizer = client.models.get().tokenizer
    assert tokenizer.vocabulary  # which is read at its first use
    monkeypatch.setattr(tokenizer, "_tokenizer", Panicking())
    error = error_of(client.post(url, json=body))
    assert error["param"] == param and "tokenizer" in error["message"]


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


@pytest.mark.parametrize(
    ("url", "body", "name", "hint"),
    [
        ("/v1/completions", {"prompt": "x"}, "temprature", "; did you mean temperature?"),
        ("/v1/chat/completions", {"messages": []}, "maxTokens", "; did you mean max_tokens?"),
        ("/v1/completions", {"prompt": "x"}, "MAX_TOKENS", "; did you mean max_tokens?"),
        ("/v1/messages", {"messages": []}, "stop_sequencs", "; did you mean stop_sequences?"),
        ("/v1/completions", {"prompt": "x"}, "repeat_penality", "; did you mean repeat_penalty?"),
        ("/v1/completions", {"prompt": "x"}, "colour", ""),
    ],
)
def test_an_unknown_parameter_is_told_with_the_known_one_that_is_nearest(
    make_client, url, body, name, hint
):
    response = make_client(ScriptedBackend()).post(url, json={**body, name: 1})
    assert response.status_code == 400
    assert response.json["error"]["message"] == f"unknown parameter: {name}{hint}"
