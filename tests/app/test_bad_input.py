"""What a client gets for a wrong parameter: its name, before any work."""

import re

import pytest

from switchyard.app.chat.request import chat
from switchyard.app.exceptions import BadRequest
from switchyard.app.formats.openai import parse
from tests.app.refused import CHAT, COMPLETIONS, error_of
from tests.scripted import ScriptedBackend

MANY = {f"a{i}": 0 for i in range(60_000)}

WRONG = {
    "prompt": ["", [], [""], [[]], 5, [1, "x"], [1, -1], [1.5], [True], [4096], None, ["x"] * 97],
    "max_tokens": [0, -2, 2.5, "10", 10**30, True],
    "n": [0, 129, 128],  # the last: more jobs than the engine holds
    "temperature": [-0.1, 1e9, "hot", float("nan")],
    "top_p": [1.1, float("inf")],
    "top_k": [-2, 1.5],
    "min_p": [2],
    "repetition_penalty": [0],
    "frequency_penalty": [3],
    "presence_penalty": [-3],
    "stop": ["", "x" * 1001, 7, ["x"] * 17],
    "stop_token_ids": [[4096]],
    "min_tokens": [-1, 17],  # the last: more than max_tokens, 16
    "ignore_eos": ["yes"],
    "seed": [2**63],
    "stream": [1],
    "echo": ["yes"],
    "model": [5],
    "logprobs": [-1, 21, True],
    "return_tokens_as_token_ids": [True],
    "best_of": [0, 128],
    "suffix": ["x"],
    "logit_bias": [
        *({"x": 1}, {"05": 1}, {"5": 101}, {"5": "1"}, {"5": None}, [[5, 1]], {"4096": 1}),
        {str(i): 1 for i in range(1025)},
    ],
    "no_such_thing": [1],
    "messages": [[]],
}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        *(({name: value}, name) for name, values in WRONG.items() for value in values),
        ({"prompt": ["x"] * 40, "n": 3}, "prompt"),
        ({"prompt": ["x"] * 40, "best_of": 3}, "prompt"),
        ({"best_of": 2, "n": 3}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"stop": ["a", ""]}, "stop.1"),
        ({"stop_token_ids": [-1]}, "stop_token_ids.0"),
        *(
            ({"stream": True, "stream_options": {name: value}}, f"stream_options.{name}")
            for name, value in (("usage", True), ("include_obfuscation", 0))
        ),
    ],
)
def test_a_bad_completion_is_refused_by_the_parameters_name(make_client, change, param):
    backend = ScriptedBackend()
    error = error_of(make_client(backend).post(COMPLETIONS, json={"prompt": "x", **change}))
    assert error["param"] == param
    assert param.split(".")[0] in error["message"] or "exceed the 96 jobs" in error["message"]
    assert not backend.enqueued


BAD_MESSAGES = [
    ("hello", ".0"),
    ({"role": "user"}, ".0.content"),
    ({"content": "x"}, ".0.role"),
    ({"role": "emperor", "content": "x"}, ".0.role"),
    ({"role": "user", "content": 5}, ".0.content"),
    ({"role": "user", "content": "x", "images": ["eA=="]}, ".0"),
    ({"role": "user", "content": [{"type": "image_url", "text": "x"}]}, ".0.content.0"),
    ({"role": "user", "content": "x", "tool_calls": [1]}, ".0.tool_calls.0"),
    ({"role": "user", "content": "a\ufdd0b"}, ""),
]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        *(({"messages": value}, "messages") for value in (None, [], "hello")),
        *(({"messages": [message]}, f"messages{where}") for message, where in BAD_MESSAGES),
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
        ({"prompt": "x"}, "prompt"),
    ],
)
def test_a_bad_chat_is_refused_by_the_parameters_name(make_client, change, param):
    backend = ScriptedBackend()
    request = {"messages": [{"role": "user", "content": "x"}], **change}
    assert error_of(make_client(backend).post(CHAT, json=request))["param"] == param
    assert not backend.enqueued


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"max_tokens": 0}, "; 0 only scores the prompt, and needs echo: true"),
        ({"n_predict": 0}, "; 0 only scores the prompt, and needs echo: true"),
        ({"max_tokens": 0, "suffix": "y"}, ""),  # which echo refuses
    ],
)
def test_a_limit_of_no_tokens_is_told_what_it_needs(make_client, change, hint):
    error = error_of(make_client().post(COMPLETIONS, json={"prompt": "x", **change}))
    assert error["message"] == f"{next(iter(change))}: must be at least 1{hint}"


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
    assert make_client().post(CHAT, json=request).status_code == 200


def user(content, **more):
    return {"messages": [{"role": "user", "content": content, **more}]}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": [1.5] * 60_000}, "prompt"),
        ({"prompt": "x", **MANY}, "a0"),
        ({"prompt": "x", "stop_token_ids": ["x"] * 60_000}, "stop_token_ids.0"),
        ({"prompt": "x", "p" * 1_000_000: 0}, "p" * 100),
        ({"prompt": "x", "logit_bias": MANY}, "logit_bias"),
        ({"prompt": "x", "stream": True, "stream_options": MANY}, "stream_options.a0"),
        (
            {"prompt": "x", "stream": True, "stream_options": {"p" * 1_000_000: 0}},
            "stream_options." + "p" * 100,
        ),
        ({"messages": [{**MANY, "role": "user", "content": "x"}]}, "messages.0.a0"),
        ({"messages": [1] * 2048}, "messages.0"),
        ({"messages": [{"role": "user", "content": "x"}] * 2049}, "messages"),
        (user([5] * 10_000), "messages.0.content.0"),
        (user([5] * 10_001), "messages"),
        (user([{"type": "p" * 1_000_000}]), "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [5] * 101}] * 100}, "messages"),
        (user("x", **MANY), "messages.0.a0"),
        (user([{"type": "text", "text": "x", **MANY}]), "messages.0.content.0.a0"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_great_many_mistakes_are_answered_for_the_first(make_client, body, param):
    url, parsed = (CHAT, chat) if "messages" in body else (COMPLETIONS, parse.completion)
    error = error_of(make_client().post(url, json=body))
    assert error["param"] == param
    assert len(error["message"]) < 300
    with pytest.raises(BadRequest) as caught:
        parsed(body)
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
def test_what_the_tokenizer_panics_at_is_named(client, monkeypatch, url, body, param):
    tokenizer = client.models.get().tokenizer
    assert tokenizer.vocabulary  # which is read at its first use
    monkeypatch.setattr(tokenizer, "_tokenizer", Panicking())
    error = error_of(client.post(url, json=body))
    assert error["param"] == param and "tokenizer" in error["message"]


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        # It isn't read to its end.
        ({"prompt": "word " * 100_000}, "prompt", r"2048 .*the prompt has at least \d+ tokens"),
        ({"prompt": "a b c d " * 1500}, "prompt", r"2048 .*the prompt has \d+ tokens"),
        ({"prompt": [1] * 2040, "max_tokens": 9}, "max_tokens", "2040 in the prompt, 9 in"),
        ({**user("x"), "max_tokens": 2048}, "max_tokens", ""),
        ({**user("x"), "max_completion_tokens": 2048}, "max_completion_tokens", ""),
        ({**user("word " * 5000), "max_completion_tokens": 2048}, "messages", ""),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_prompt_longer_than_the_context_is_refused(make_client, body, param, message):
    client = make_client(clamp_max_tokens=False)
    error = error_of(client.post(CHAT if "messages" in body else COMPLETIONS, json=body))
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert re.search(message, error["message"])


@pytest.mark.parametrize(
    ("url", "body", "name", "nearest"),
    [
        (COMPLETIONS, {"prompt": "x"}, "temprature", "temperature"),
        (CHAT, {"messages": []}, "maxTokens", "max_tokens"),
        (COMPLETIONS, {"prompt": "x"}, "MAX_TOKENS", "max_tokens"),
        ("/v1/messages", {"messages": []}, "stop_sequencs", "stop_sequences"),
        (COMPLETIONS, {"prompt": "x"}, "repeat_penality", "repeat_penalty"),
        (COMPLETIONS, {"prompt": "x"}, "colour", None),
    ],
)
def test_an_unknown_parameter_is_told_with_the_known_one_that_is_nearest(
    make_client, url, body, name, nearest
):
    response = make_client().post(url, json={**body, name: 1})
    assert response.status_code == 400
    hint = f"; did you mean {nearest}?" if nearest else ""
    assert response.json["error"]["message"] == f"unknown parameter: {name}{hint}"
