"""Requests as users of TabbyAPI send them, written from its public documentation and what its
users say of it, November 2026: each is answered, and what is told is known.
"""

import pytest

from tests.app.conftest import frames
from tests.scripted import ScriptedBackend

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"

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
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
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
    client = make_client(ScriptedBackend(), presets={"dry": {"dry_multiplier": 0.8}})
    for more, status in (
        ({}, 200),
        ({"dry_multiplier": 0.0, "dry_allowed_length": 0}, 200),
        ({"dry_multiplier": 0.8}, 400),
        ({"preset": "dry"}, 400),
        ({"dry_base": 0.5}, 400),
    ):
        response = client.post(CHAT, json={"messages": ASK, "max_tokens": 1, "dry_base": 0, **more})
        assert response.status_code == status, (more, response.text)
