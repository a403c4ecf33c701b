"""Each field that other servers' clients send, alone with its value: honoured, or told."""

import pytest

from tests.app.conftest import prompt_of

# Open WebUI 0.12.4's advanced parameters, as it sends them to an OpenAI connection, November 2026.
OPEN_WEBUI = {
    **{"temperature": 0.7, "top_p": 0.8, "top_k": 30, "min_p": 0.1, "max_tokens": 3, "seed": 7},
    **{"stop": ["x"], "frequency_penalty": 0.5, "presence_penalty": 0.5, "repeat_penalty": 1.3},
    **{"repeat_last_n": 32, "mirostat": 2, "mirostat_eta": 0.2, "mirostat_tau": 4.0, "tfs_z": 0.5},
    **{"logit_bias": {"7": 1.0}, "think": False, "reasoning_effort": "low"},
    **dict.fromkeys(("num_ctx", "num_keep", "num_batch", "num_thread", "num_gpu"), 8),
    **dict.fromkeys(("use_mmap", "use_mlock"), True),
    **{"response_format": {"type": "json_object"}, "keep_alive": "5m", "format": "json"},
}
# The samplers of TabbyAPI's public documentation, November 2026.
TABBYAPI = {
    **{"max_tokens": 3, "min_tokens": 2, "min_length": 2, "stop_sequence": ["x"]},
    **{"banned_strings": ["x"], "banned_tokens": [7], "custom_token_bans": "7, 8"},
    **{"allowed_tokens": [7], "token_healing": False, "temperature": 0.7, "temperature_last": True},
    **dict.fromkeys(("smoothing_factor", "top_a", "tfs", "typical", "skew"), 0.5),
    **{"smoothing_curve": 1.5, "xtc_probability": 0.5, "xtc_threshold": 0.2},
    **{"rep_pen": 1.3, "repetition_penalty": 1.3},
    **dict.fromkeys(("penalty_range", "repetition_range", "rep_pen_range"), 32),
    **{"dry_multiplier": 0.8, "dry_base": 1.5, "dry_allowed_length": 3, "dry_penalty_last_n": 64},
    **{"dry_sequence_breakers": ["x"], "mirostat_mode": 2},
    **{"add_bos_token": True, "ban_eos_token": True, "json_schema": {"type": "object"}},
    **{"regex_pattern": "a+", "grammar_string": 'root ::= "a"', "loop_detect_window": 0},
    **{"response_prefix": "", "prompt_template": "", "template_vars": {}},
    **{"top_k": 30, "top_p": 0.8, "min_p": 0.1, "min_temp": 0.5, "max_temp": 1.5},
    **{"temp_exponent": 2.0, "frequency_penalty": 0.5, "presence_penalty": 0.5},
    **{"repetition_decay": 0, "mirostat_tau": 4.0, "mirostat_eta": 0.2, "dry_range": 64},
    **{"logit_bias": {"7": 1.0}, "cfg_scale": 1.0, "negative_prompt": ""},
    **{"speculative_ngram": False, "stop": ["x"], "seed": 7, "n": 1, "best_of": 1, "echo": False},
    **{"suffix": "", "logprobs": None, "user": "x", "stream_options": {"include_usage": True}},
    **{"max_completion_tokens": 3, "max_length": 3, "response_format": {"type": "json_object"}},
    **{"tools": [], "add_generation_prompt": True, "priority": 0, "model": "scripted"},
}
# Further parameters of vLLM 0.24 and SGLang 0.5, by their documentation, November 2026.
VLLM_AND_SGLANG = {
    **{"stop_token_ids": [7], "include_stop_str_in_output": True, "ignore_eos": True},
    **{"skip_special_tokens": True, "spaces_between_special_tokens": True},
    **{"allowed_token_ids": [7], "bad_words": ["x"], "use_beam_search": False},
    **{"length_penalty": 1.0, "cache_salt": "x", "request_id": "x"},
    **{"structured_outputs": {"regex": "a+"}, "guided_json": {"type": "object"}},
    **{"guided_regex": "a+", "guided_choice": ["a", "b"], "guided_grammar": 'root ::= "a"'},
    **{"guided_decoding_backend": "auto", "regex": "a+", "ebnf": 'root ::= "a"'},
    **{"return_token_ids": False, "prompt_logprobs": 1},
}
LISTS = {"openwebui": OPEN_WEBUI, "tabbyapi": TABBYAPI, "vllm_sglang": VLLM_AND_SGLANG}

MESSAGES = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
TEXT = {"prompt": "x", "max_tokens": 4}
LEAST = {
    **dict.fromkeys(("/v1/chat/completions", "/v1/messages", "/api/chat"), MESSAGES),
    **dict.fromkeys(("/v1/completions", "/generate", "/completion", "/api/generate"), TEXT),
    **dict.fromkeys(("/api/v1/generate", "/api/extra/generate/stream"), TEXT),
    "/v1/responses": {"input": "x", "max_tokens": 4},
}
LIMITS = {"max_length", "max_completion_tokens"}
# Values by which a job is as without them.
AS_IT_IS = {
    *("token_healing", "template_vars", "return_token_ids", "n", "best_of", "echo", "suffix"),
    *("user", "tools", "cfg_scale", "negative_prompt", "repetition_decay", "logprobs"),
    *("add_generation_prompt", "priority", "model"),
}
# Elsewhere a value is refused, as the answer has no place for it.
PLACES = {
    "prompt_logprobs": {"/v1/chat/completions", "/v1/completions"},
    "reasoning_effort": LEAST.keys() - {"/api/v1/generate", "/api/extra/generate/stream"},
}


def parts(job):
    """All of a job that a parameter can change."""
    own = ("identifier", "request_id")
    return {name: getattr(job, name) for name in job.__slots__ if name not in own}


@pytest.mark.parametrize("url", LEAST)
@pytest.mark.parametrize("listed", LISTS)
def test_each_field_of_another_server_is_honoured_or_told(client, url, listed):
    jobs = client.backend.enqueued
    assert client.post(url, json=LEAST[url]).status_code == 200
    usual, wrong = parts(jobs[-1]), {}
    for name, value in LISTS[listed].items():
        body = {k: v for k, v in LEAST[url].items() if name not in LIMITS or "max" not in k}
        response = client.post(url, json={**body, name: value})
        told = response.headers.get("X-Switchyard-Ignored")
        if url not in PLACES.get(name, LEAST):
            if response.status_code != 400 or f"{name} is not supported" not in response.text:
                wrong[name] = response.text
        elif response.status_code != 200:
            wrong[name] = response.text
        elif told is None and name not in AS_IT_IS and parts(jobs[-1]) == usual:
            wrong[name] = "has no effect, and is not told"
        elif told is not None and told != name:
            wrong[name] = f"tells {told}"
    assert wrong == {}


ROUTES = ["/v1/chat/completions", "/v1/messages", "/v1/responses"]


def least(url):
    return {"input": "x"} if "responses" in url else MESSAGES


@pytest.mark.parametrize("url", ROUTES)
@pytest.mark.parametrize(
    "asked",
    [
        {"think": False},
        {"enable_thinking": False},
        {"template_vars": {"enable_thinking": False}},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
    ids=str,
)
def test_thinking_has_one_meaning_and_many_names(make_client, with_template, url, asked):
    client = make_client(path=with_template("{{ enable_thinking }}"))
    response = client.post(url, json={**least(url), **asked})
    assert response.status_code == 200 and "X-Switchyard-Ignored" not in response.headers
    assert prompt_of(client, client.backend) == "False"


@pytest.mark.parametrize("url", ROUTES)
@pytest.mark.parametrize("name", ["reasoning_budget", "thinking_budget", "thinking_token_budget"])
def test_a_budget_of_thoughts_is_refused_by_the_clients_name(make_client, with_template, url, name):
    refused = make_client(path=with_template("no tags")).post(url, json={**least(url), name: 5})
    assert refused.status_code == 400 and "doesn't use the server's tags" in refused.text
    # Errors of messages name no parameter.
    assert url == "/v1/messages" or refused.json["error"]["param"] == name


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FORM = {"type": "json_schema", "schema": SCHEMA}
NESTED = {
    "/v1/messages": {"output_config": {"effort": "low", "format": FORM}},
    "/v1/responses": {"reasoning": {"effort": "low"}, "text": {"format": {**FORM, "name": "x"}}},
}


@pytest.mark.parametrize("url", NESTED)
def test_effort_and_form_may_stand_at_either_place(make_client, with_template, url):
    client = make_client(path=with_template("{{ reasoning_effort }}"))
    named = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    answers = [
        client.post(url, json={**least(url), **asked})
        for asked in (
            NESTED[url],
            {"reasoning_effort": "low", "response_format": named},
            {"reasoning_effort": "low", "format": SCHEMA},
            {**NESTED[url], "reasoning_effort": "low"},
        )
    ]
    assert [answer.status_code for answer in answers] == [200] * 4, answers[-1].text
    assert len({(job.prompt, job.constraint) for job in client.backend.enqueued}) == 1
    if url == "/v1/responses":
        told = [(answer.json["reasoning"], answer.json["text"]) for answer in answers[:2]]
        assert told[0] == told[1]
    for name, value, at in (("reasoning_effort", "high", "effort"), ("format", "json", "format")):
        refused = client.post(url, json={**least(url), **NESTED[url], name: value})
        assert refused.status_code == 400 and f"{name} and " in refused.text, refused.text
        assert f".{at} are the same parameter, but their values differ" in refused.text
    wrong = client.post(url, json={**least(url), "reasoning_effort": "much"})
    assert wrong.status_code == 400 and "reasoning_effort: " in wrong.text


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"min_temp": 0.5}, (0.5, 1)),
        ({"max_temp": 1.5}, (1, 1.5)),
        ({"min_temp": 1, "max_temp": 1}, (0, 0)),
        ({"min_temp": 1.0}, (0, 0)),
        ({"min_temp": 0.5, "max_temp": 0.7}, (0.5, 0.7)),
        ({"dynatemp_low": 1, "dynatemp_high": 1}, (1, 1)),
        *(({name: value}, None) for name, value in (("min_temp", 2), ("max_temp", 0.5))),
        *(({name: value}, None) for name, value in (("min_temp", "x"), ("dynatemp_low", 1))),
    ],
)
def test_bounds_of_temperature_by_tabbyapis_names_have_its_defaults(client, bounds, expected):
    asked = {**TEXT, **bounds} | ({"temperature": 0.7} if expected else {})
    response = client.post("/v1/completions", json=asked)
    if expected is None:
        assert response.status_code == 400 and next(iter(bounds)) in response.text
    else:
        sampling = client.backend.enqueued[-1].sampling
        assert (sampling.dynatemp_low, sampling.dynatemp_high) == expected


@pytest.mark.parametrize(("enabled", "status"), [(True, 400), (False, 200)])
def test_a_message_has_one_way_to_think(make_client, with_template, enabled, status):
    client = make_client(path=with_template("{{ enable_thinking }}"))
    for other in ({"think": enabled}, {"template_vars": {"enable_thinking": enabled}}):
        asked = {**MESSAGES, "thinking": {"type": "disabled"}, **other}
        response = client.post("/v1/messages", json=asked)
        assert response.status_code == status, (other, response.text)
