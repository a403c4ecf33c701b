"""How tokens are drawn: what a request says is what the engine gets."""

import typing

import pytest

from switchyard import engine
from switchyard.app.request.sampling import Sampled
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokenizer import Tokenizer
from tests.app.refused import error_of
from tests.engine.exl2.drive import chain
from tests.engine.forced import exl2_backend

URL = "/v1/completions"

# Parameters that the engine's Sampling has by the same name, and a value.
SAME = {
    **{"temperature": 0.4, "temperature_last": True, "dynatemp_exponent": 1.5, "top_p": 0.9},
    **{"smoothing_factor": 0.7, "smoothing_curve": 2.0, "top_a": 0.2, "min_p": 0.1, "tfs": 0.95},
    **{"typical_p": 0.8, "mirostat_tau": 3.0, "mirostat_eta": 0.2, "xtc_probability": 0.5},
    **{"xtc_threshold": 0.2, "skew": -0.5, "frequency_penalty": -0.5, "presence_penalty": -0.3},
    **{"dry_multiplier": 0.8, "dry_base": 2.0, "dry_allowed_length": 3, "dry_range": 100},
}
# By the parameter: its value, what else it needs, and what the engine's Sampling says then.
GIVEN = {
    **{name: (value, {}, {name: value}) for name, value in SAME.items()},
    "dynatemp_low": (0.3, {"dynatemp_high": 2}, {"dynatemp_low": 0.3}),
    "dynatemp_high": (2.5, {"dynatemp_low": 2.5}, {"dynatemp_high": 2.5}),
    "top_k": (-1, {}, {"top_k": 0}),
    "mirostat_mode": (2, {}, {"mirostat": True}),
    "repetition_penalty": (1.2, {}, {"repetition_penalty": 1.2, "repetition_range": -1}),
    "repetition_penalty_range": (64, {}, {"repetition_range": 64}),
    "repetition_decay": (32, {"repetition_penalty_range": 9}, {"repetition_decay": 32}),
    "logit_bias": ({"5": -2.5, "7": 1}, {}, {"logit_bias": ((5, -2.5), (7, 1.0))}),
    "banned_token_ids": ([5, 6], {}, {"banned_token_ids": (5, 6)}),
    "allowed_token_ids": ([5, 6], {}, {"allowed_token_ids": (5, 6)}),
    "cfg_scale": (1.5, {"negative_prompt": "no"}, {"cfg_scale": 1.5}),
}


@pytest.mark.parameter("temperature", "top_k", "top_p", "logit_bias", "/v1/completions")
@pytest.mark.parameter("temperature_last", "dynatemp_low", "dynatemp_high", "dynatemp_exponent")
@pytest.mark.parameter("smoothing_factor", "smoothing_curve", "top_a", "min_p", "tfs", "typical_p")
@pytest.mark.parameter("mirostat_mode", "mirostat_tau", "mirostat_eta", "xtc_probability")
@pytest.mark.parameter("xtc_threshold", "skew", "repetition_penalty", "repetition_penalty_range")
@pytest.mark.parameter("repetition_decay", "frequency_penalty", "presence_penalty")
@pytest.mark.parameter("dry_multiplier", "dry_base", "dry_allowed_length", "dry_range")
@pytest.mark.parameter("banned_token_ids", "allowed_token_ids", "cfg_scale")
@pytest.mark.parametrize("name", GIVEN)
def test_what_a_request_says_is_what_the_engine_gets(client, name):
    value, more, expected = GIVEN[name]
    response = client.post(URL, json={"prompt": "x", name: value, **more})
    assert response.status_code == 200, response.json
    [job] = client.backend.enqueued
    assert {field: getattr(job.sampling, field) for field in expected} == expected


def test_a_request_can_ask_for_all_that_the_engine_knows():
    asked = {field for _, _, expected in GIVEN.values() for field in expected}
    others = {"banned_strings", "dry_breakers", "seed"}  # seen by tests of their own
    assert asked | others == set(engine.PARAMETERS)


def test_what_a_request_says_is_of_the_engines_types():
    types = typing.get_type_hints(engine.Sampling)
    otherwise = {
        *("dynatemp_low", "dynatemp_high", "repetition_penalty", "frequency_penalty"),  # or null
        *("logit_bias", "banned_token_ids", "allowed_token_ids", "banned_strings"),  # as in JSON
    }
    asked = {name: field.annotation for name, field in Sampled.model_fields.items()}
    different = {name for name in asked.keys() & types.keys() if asked[name] != types[name]}
    assert different == otherwise


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"mirostat_mode": 1}, "mirostat_mode"),
        ({"mirostat_mode": 2, "temperature": 0}, "temperature"),
        ({"dynatemp_low": 0.5}, "dynatemp_low"),
        ({"dynatemp_low": 2, "dynatemp_high": 1}, "dynatemp_low"),
        ({"repetition_decay": 5}, "repetition_decay"),
        ({"repetition_decay": 5, "repetition_penalty_range": -1}, "repetition_decay"),
        ({"cfg_scale": 2}, "cfg_scale"),
        ({"negative_prompt": "no"}, "cfg_scale"),
        ({"dry_sequence_breakers": "[" * 9000}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": '["a"' + " " * 10_000 + "]"}, "dry_sequence_breakers"),
        ({"xtc_threshold": 0.6}, "xtc_threshold"),
        ({"dry_base": 0.5}, "dry_base"),
        ({"tfs": 1.5}, "tfs"),
        ({"banned_token_ids": [999999]}, "banned_token_ids"),
        ({"allowed_token_ids": [999999]}, "allowed_token_ids"),
        ({"banned_strings": [""]}, "banned_strings.0"),
        ({"token_healing": True, "prompt": [5]}, "token_healing"),
        ({"token_healing": True, "prompt": "a b c", "logprobs": 1}, "token_healing"),
        ({"token_healing": True, "prompt": "a b c", "logprobs": 1, "echo": True}, "token_healing"),
        ({"token_healing": True, "prompt": [5, 2]}, "token_healing"),
        ({"cfg_scale": 2, "negative_prompt": "no " * 3000}, "negative_prompt"),
        ({"preset": "none such"}, "preset"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_wrong_is_refused_by_its_name(client, body, param):
    error = error_of(client.post(URL, json={"prompt": "x", **body}))
    assert error["param"] == param and not client.backend.enqueued


@pytest.mark.parameter("dry_penalty_last_n", "/completion", "/api/v1/generate")
@pytest.mark.parameter("guidance_scale", "mirostat", "rep_pen_range", "tfs_z", "typical")
@pytest.mark.parameter("repeat_last_n", "/completion")
@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/api/v1/generate", {"typical": 0.5, "tfs": 0.9}, {"typical_p": 0.5, "tfs": 0.9}),
        ("/api/v1/generate", {"rep_pen": 1.1, "rep_pen_range": 9}, {"repetition_range": 9}),
        ("/api/v1/generate", {"mirostat": 2, "mirostat_tau": 3}, {"mirostat": True}),
        (
            "/api/v1/generate",
            {"max_new_tokens": 3, "guidance_scale": 2, "negative_prompt": "no"},
            {"cfg_scale": 2},
        ),
        ("/completion", {"dry_multiplier": 1, "dry_penalty_last_n": 64}, {"dry_range": 64}),
        ("/completion", {"dry_multiplier": 1, "dry_penalty_last_n": 0}, {"dry_multiplier": 0}),
        ("/completion", {"repeat_penalty": 1.1}, {"repetition_range": -1}),
        ("/completion", {"repeat_penalty": 1.1, "repeat_last_n": 64}, {"repetition_range": 64}),
        ("/completion", {"repeat_penalty": 1.1, "repeat_last_n": 0}, {"repetition_penalty": 1}),
        ("/completion", {"tfs_z": 0.9, "mirostat": 0, "logit_bias": []}, {"tfs": 0.9}),
    ],
    ids=str,
)
def test_other_names_reach_the_engine_too(client, path, body, expected):
    response = client.post(path, json={"prompt": "x", **body})
    assert response.status_code == 200, response.json
    [job] = client.backend.enqueued
    assert {field: getattr(job.sampling, field) for field in expected} == expected


@pytest.mark.parametrize(
    ("path", "window", "told"),
    [
        ("/completion", {}, (1.3, -1)),
        ("/completion", {"repeat_last_n": 0}, (1, -1)),  # turns it off
        ("/completion", {"repeat_last_n": 9, "penalize_nl": False}, (1.3, 9)),
        ("/api/v1/generate", {"rep_pen_range": 9}, (1.3, 9)),
        ("/api/v1/generate", {"max_new_tokens": 3, "repetition_penalty_range": 9}, (1.3, 9)),
    ],
    ids=str,
)
def test_the_default_penalty_has_the_requests_window(make_client, path, window, told):
    client = make_client(default_repetition_penalty=1.3)
    response = client.post(path, json={"prompt": "x", **window})
    assert response.status_code == 200, response.json
    [sampling] = [job.sampling for job in client.backend.enqueued]
    assert (sampling.repetition_penalty, sampling.repetition_range) == told


@pytest.mark.parametrize("path", ["/api/v1/generate", "/completion"])
def test_false_is_no_number_of_tokens(client, path):
    body = {"prompt": "x", "dry_multiplier": 1, "dry_penalty_last_n": False}
    assert "dry_penalty_last_n" in error_of(client.post(path, json=body))["message"]


# On the generator


@pytest.fixture
def generating(make_client, model_path):
    return lambda logits: make_client(exl2_backend(model_path, logits=logits))


def text(client, **body):
    response = client.post(URL, json={"max_tokens": 2, "temperature": 0, **body})
    assert response.status_code == 200, response.json
    return response.json["choices"][0]["text"]


@pytest.mark.parameter("banned_strings")
def test_a_banned_string_does_not_come(generating):
    made = generating(lambda t: {300: 0.0, 301: -1.0})
    first, second = made.models.get(None).tokenizer.pieces[300:302]
    assert text(made, prompt="x") == (first * 2).decode()
    assert text(made, prompt="x", banned_strings=[first.decode()]) == (second * 2).decode()


@pytest.mark.parameter("token_healing")
def test_a_prompt_is_healed(generating, model_path):
    word = Tokenizer(ModelDir.read(model_path)).pieces.index(b" return")
    made = generating(lambda t: {word: 5.0, 300: 6.0})
    assert text(made, prompt="x re", max_tokens=1, token_healing=True) == "turn"


def test_what_needs_the_tokenizer_goes_together(client):
    body = {"prompt": "x re", "dry_multiplier": 1, "banned_strings": ["a"], "token_healing": True}
    assert client.post(URL, json=body).status_code == 200
    [job] = client.backend.enqueued
    assert job.sampling.dry_breakers and job.sampling.banned_strings and job.healing
    assert job.prompt == client.models.get().tokenizer.encode("x", 9)


@pytest.mark.parameter("negative_prompt")
def test_a_negative_prompt_is_steered_away_from(generating):
    made = generating(lambda t: {300: 1.0, 301: 0.9} if t != 9 else {300: 1.0, 301: -9.0})
    plain = text(made, prompt=[5, 6], max_tokens=1)
    tokenizer = made.models.get(None).tokenizer
    negative = tokenizer.decode([9])
    away = text(made, prompt=[5, 6], max_tokens=1, cfg_scale=3, negative_prompt=negative)
    assert plain == tokenizer.decode([300]) and away == tokenizer.decode([301])


@pytest.mark.parameter("dry_sequence_breakers")
def test_nothing_is_repeated_across_a_breaker(generating):
    made = generating(chain(300, 301, 302, 303, 300))
    ends = [made.models.get(None).tokenizer.pieces[i].decode() for i in (301, 303)]
    loop = {"prompt": [300], "max_tokens": 12, "dry_multiplier": 60}
    assert text(made, **loop, dry_sequence_breakers=ends) == text(made, prompt=[300], max_tokens=12)
    assert text(made, **loop, dry_sequence_breakers=[]) != text(made, prompt=[300], max_tokens=12)


# Mirostat


FILTERS = {"top_k": 100, "top_p": 0.92, "typical_p": 0.9, "tfs": 0.9, "top_a": 0.1, "min_p": 0.1}
FILTERS |= {"skew": 0.5, "xtc_probability": 0.5}


@pytest.mark.parametrize("url", ["/v1/completions", "/v1/chat/completions"])
def test_mirostat_takes_the_place_of_filters_and_tells_them(client, url):
    """As KoboldAI Lite and SillyTavern send them, whatever their user has chosen."""
    asked = {"messages": [{"role": "user", "content": "x"}]} if "chat" in url else {"prompt": "x"}
    for more in ({}, {**FILTERS, "top_k": -1}, FILTERS):
        response = client.post(url, json={**asked, "mirostat_mode": 2, "seed": 5, **more})
        told = response.headers.get("x-switchyard-ignored", "")
        expected = {name for name, value in more.items() if value != -1}  # -1: off
        assert set(filter(None, told.split(","))) == expected
    plain, *filtered = (job.sampling for job in client.backend.enqueued)
    assert [plain, plain] == filtered and plain.mirostat


def test_mirostat_may_have_a_dynamic_temperature_in_place_of_one(client):
    body = {"mirostat_mode": 2, "temperature": 0, "dynatemp_low": 0.5, "dynatemp_high": 1.5}
    response = client.post("/v1/completions", json={"prompt": "x", **body})
    assert response.status_code == 200, response.json
