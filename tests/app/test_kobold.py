"""KoboldAI's, KoboldCpp's and text-generation-webui's routes, over a scripted backend."""

import json

import pytest

from switchyard.engine.messages import Prefill, Started
from tests.app.conftest import fails
from tests.app.refused import error_of
from tests.scripted import ScriptedBackend, finished

pytestmark = pytest.mark.both_ways

GENERATE, STREAM = "/api/v1/generate", "/api/extra/generate/stream"

# As KoboldAI Lite and SillyTavern send them, every sampler off.
IDLE = {
    **{
        "n": 1,
        "max_context_length": 2048,
        "rep_pen": 1,
        "rep_pen_range": 360,
        "rep_pen_slope": 0.7,
    },
    **dict.fromkeys(("top_k", "top_a", "min_p", "dynatemp_range", "smoothing_factor"), 0),
    **dict.fromkeys(("mirostat", "xtc_probability", "dry_multiplier"), 0),
    **dict.fromkeys(("typical", "tfs", "dynatemp_exponent"), 1),
    **{"mirostat_tau": 5, "mirostat_eta": 0.1, "xtc_threshold": 0.2},
    **{"dry_base": 1.75, "dry_allowed_length": 2, "dry_sequence_breakers": ["\n"]},
    **{"sampler_order": [6, 5, 0, 1, 3, 4, 2], "sampler_seed": -1},
    **{"use_default_badwordsids": False, "ban_eos_token": False, "banned_tokens": []},
    **{"memory": "", "grammar": "", "quiet": True, "trim_stop": True, "genkey": "KCPP1"},
    "stop_sequence": [],
}
TEXTGEN_IDLE = {
    **{"preset": "None", "do_sample": True, "early_stopping": False, "negative_prompt": ""},
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff", "top_a", "repetition_penalty_range"), 0),
    **dict.fromkeys(("top_k", "min_length", "no_repeat_ngram_size", "penalty_alpha"), 0),
    **dict.fromkeys(("typical_p", "tfs", "repetition_penalty", "num_beams", "length_penalty"), 1),
    **{"mirostat_mode": 0, "mirostat_tau": 5, "mirostat_eta": 0.1, "guidance_scale": 1, "seed": -1},
    **{"add_bos_token": True, "truncation_length": 2048, "ban_eos_token": False},
    **{"skip_special_tokens": True, "stopping_strings": []},
}


def job_of(make_client, body, path=GENERATE):
    client = make_client()
    response = client.post(path, json={"prompt": "x", **body})
    assert response.status_code == 200, response.json
    [job] = client.backend.enqueued
    return job, response


def refused(client, body, path=GENERATE):
    error = error_of(client.post(path, json={"prompt": "x", **body}))
    return error["param"], error["code"]


@pytest.mark.parameter("prompt", "/api/v1/generate")
def test_a_text_is_a_result(make_client):
    job, response = job_of(make_client, {"max_length": 3, **IDLE})
    [result] = response.json["results"]
    assert (result["text"], result["finish_reason"]) == ("0 1 2 ", "length")
    assert (result["prompt_tokens"], result["completion_tokens"]) == (len(job.prompt), 3)
    assert job.sampling.seed is None and job.sampling.repetition_penalty == 1


@pytest.mark.parameter("n", "/api/v1/generate")
def test_several_texts_are_several_results(make_client):
    response = make_client().post(GENERATE, json={"prompt": "x", "n": 3, "max_length": 1})
    assert [result["text"] for result in response.json["results"]] == ["0 "] * 3


@pytest.mark.parameter("max_length", "rep_pen", "sampler_seed", "stop_sequence", "bypass_eos")
def test_its_names_reach_the_job(make_client):
    body = {"max_length": 7, "rep_pen": 1.1, "sampler_seed": 5, "stop_sequence": ["END"]}
    job, _ = job_of(make_client, {**body, "bypass_eos": True})
    assert (job.max_new_tokens, job.stop_strings, job.ignore_eos) == (7, ("END",), True)
    assert (job.sampling.repetition_penalty, job.sampling.seed) == (1.1, 5)


@pytest.mark.parameter("max_new_tokens", "stopping_strings", "min_length")
def test_textgens_names_reach_the_job(make_client):
    body = {"max_new_tokens": 7, "repetition_penalty": 1.1, "seed": 5, "stopping_strings": ["END"]}
    more = {"min_length": 2, "do_sample": False, "temperature": 0.7}
    job, _ = job_of(make_client, {**body, **more})
    assert (job.max_new_tokens, job.stop_strings, job.min_new_tokens) == (7, ("END",), 2)
    assert (job.sampling.repetition_penalty, job.sampling.seed) == (1.1, 5)
    assert job.sampling.temperature == 0


def test_the_limit_of_textgen_beside_names_that_only_kobold_has_is_its_other_name(make_client):
    job, _ = job_of(make_client, {"max_new_tokens": 2, "genkey": "K"})
    assert job.max_new_tokens == 2


@pytest.mark.parameter("grammar_string")
@pytest.mark.parametrize(
    ("limit", "name"), [("max_length", "grammar"), ("max_new_tokens", "grammar_string")]
)
def test_a_grammar_constrains_the_text(make_client, limit, name):
    job, _ = job_of(make_client, {limit: 3, name: 'root ::= "yes" | "no"'})
    assert job.constraint is not None
    assert refused(make_client(), {limit: 3, name: "root ::= ("})[0] == name


def test_textgens_samplers_may_be_said_to_be_off(make_client):
    _, response = job_of(make_client, {"max_new_tokens": 2, **TEXTGEN_IDLE})
    assert response.json["results"][0]["text"] == "0 1 "


@pytest.mark.parameter("parse_special", "/api/v1/generate", "/completion")
@pytest.mark.parametrize(
    ("path", "limit"),
    [(GENERATE, "max_length"), (GENERATE, "max_new_tokens"), ("/completion", "n_predict")],
)
def test_special_tokens_in_the_prompt_count_unless_told_otherwise(client, path, limit):
    token, token_id = next(iter(client.models.get().tokenizer.tag_ids.items()))
    for more in ({}, {"parse_special": False}):
        client.post(path, json={"prompt": f"x{token}y", limit: 1, **more})
    parsed, literal = [job.prompt for job in client.backend.enqueued]
    assert token_id in parsed and token_id not in literal


@pytest.mark.parameter("max_context_length", "truncation_length")
@pytest.mark.parametrize(
    ("limit", "context"),
    [("max_length", "max_context_length"), ("max_new_tokens", "truncation_length")],
)
def test_a_limit_of_the_context_is_kept_by_refusal(make_client, limit, context):
    body = {"prompt": "x " * 50, limit: 10, context: 20}
    assert refused(make_client(), body) == (context, "context_length_exceeded")
    job_of(make_client, {**body, limit: 5000, context: 100_000})  # more than the model's


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        *(
            ({name: value}, name, "invalid_value")
            for name, value in (
                *(("max_length", 0), ("rep_pen", 100), ("tfs", 1.9), ("mirostat", 1)),
                *(("sampler_order", [6, 5, 0, 2, 1, 3]), ("max_tokens", 0)),
            )
        ),
        ({"memory": "once"}, "memory", "unsupported_parameter"),
        ({"stop_sequence": [""]}, "stop_sequence.0", "invalid_value"),
        ({"max_tokens": 5, "max_length": 6}, "max_tokens", "invalid_value"),
        ({"max_new_tokens": 5, "num_beams": 4}, "num_beams", "unsupported_parameter"),
        ({"max_new_tokens": 5, "max_length": 6}, "max_new_tokens", "invalid_value"),
        (
            {"max_new_tokens": 5, "dynamic_temperature": True, "dynatemp_low": 1},
            *("dynamic_temperature", "invalid_value"),
        ),
    ],
    ids=str,
)
def test_what_can_not_be_honoured_is_named_as_the_client_names_it(make_client, more, param, code):
    assert refused(make_client(), more) == (param, code)


@pytest.mark.parameter("prompt", "/api/extra/generate/stream")
def test_a_stream_tells_tokens_and_at_last_why_it_ended(make_client):
    _, response = job_of(make_client, {"max_length": 2}, STREAM)
    blocks = [block for block in response.text.split("\n\n") if block]
    assert all(block.startswith("event: message\ndata: ") for block in blocks)
    assert [json.loads(block.partition("data: ")[2]) for block in blocks] == [
        {"token": token, "finish_reason": reason}
        for token, reason in (("0 ", None), ("1 ", None), ("", "length"))
    ]


def test_a_stream_is_of_one_text(make_client):
    assert refused(make_client(), {"n": 2}, STREAM)[0] == "n"


def test_a_stream_that_fails_ends_with_an_error(make_client):
    text = make_client(ScriptedBackend(fails("x"))).post(STREAM, json={"prompt": "x"}).text
    names = [line for line in text.splitlines() if line.startswith("event: ")]
    assert names == ["event: message", "event: error"]


@pytest.mark.parametrize(
    ("order", "is_last"),
    [([6, 5, 0, 1, 3, 4, 2], False), ([6, 0, 1, 3, 4, 2, 5], True), ([5, 6, 4, 2, 0, 1, 3], False)],
)
@pytest.mark.parameter("sampler_order")
def test_an_order_of_samplers_counts_as_far_as_they_are_on(make_client, order, is_last):
    body = {"max_length": 1, "temperature": 0.5, "top_p": 0.9, "sampler_order": order}
    assert job_of(make_client, body)[0].sampling.temperature_last is is_last


@pytest.mark.parametrize(
    ("more", "is_told"),
    [
        ({}, False),
        ({"rep_pen": 1, "top_k": -1}, False),
        ({"rep_pen": 1.1}, True),
        ({"top_k": 5}, True),
        *(({name: 0.5}, True) for name in ("top_a", "tfs", "typical")),
        ({"sampler_order": [6, 5, 0, 2, 1, 3, 3]}, True),  # which names a sampler twice
    ],
)
def test_an_order_is_told_as_ignored_for_samplers_that_are_on(make_client, more, is_told):
    body = {"max_length": 1, "top_p": 0.9, "sampler_order": [5, 1, 4, 3, 2, 0, 6], **more}
    job, answer = job_of(make_client, body)
    told = answer.headers.get("X-Switchyard-Ignored")
    assert told == ("sampler_order" if is_told else None)
    assert not job.sampling.temperature_last


@pytest.mark.parametrize(
    ("temperature", "spread", "bounds"),
    [(1.25, 0.75, (0.5, 2.0)), (0.5, 1, (0, 1.5)), (4.5, 1, (3.5, 5)), (0.7, 0, (0, 0))],
)
@pytest.mark.parameter("dynatemp_range")
def test_a_range_of_temperatures_is_about_the_temperature(make_client, temperature, spread, bounds):
    more = {"temperature": temperature, "dynatemp_range": spread, "dynatemp_exponent": 2.0}
    sampling = job_of(make_client, {"max_length": 1, **more})[0].sampling
    assert (sampling.dynatemp_low, sampling.dynatemp_high) == pytest.approx(bounds)
    assert sampling.dynatemp_exponent == (2 if spread else 1)


@pytest.mark.parameter("return_progress", "/api/extra/generate/stream")
def test_a_stream_tells_the_progress_and_nothing_else_can(make_client):
    def script(job):
        yield Started(job.identifier)
        yield Prefill(job.identifier, 3, 3, 0)
        yield finished(job, 0)

    client = make_client(ScriptedBackend(script))
    body = {"prompt": "x", "max_length": 2, "return_progress": True}
    first = client.post(STREAM, json=body).get_data(as_text=True).split("\n\n")[0]
    told = json.loads(first.partition("data: ")[2])
    assert told["prompt_progress"]["processed"] == 3 and told["token"] == ""
    assert refused(client, body) == ("return_progress", "unknown_parameter")


@pytest.mark.parametrize(
    ("given", "stays"), [({}, False), ({"trim_stop": True}, False), ({"trim_stop": False}, True)]
)
def test_a_stop_sequence_is_cut_off_unless_asked_otherwise(make_client, given, stays):
    assert job_of(make_client, {"stop_sequence": ["END"], **given})[0].include_stop is stays


@pytest.mark.parameter("prompt", "special", "/api/extra/tokencount")
@pytest.mark.parameter("text", "/v1/internal/encode")
@pytest.mark.parameter("tokens", "/v1/internal/decode")
def test_tokens_are_counted_as_those_of_a_prompt(make_client):
    job, _ = job_of(make_client, {"prompt": "Hello", "max_length": 1})
    client, ids = make_client(), list(job.prompt)
    for path, body, told in (
        ("/api/extra/tokencount", {"prompt": "Hello"}, {"value": len(ids), "ids": ids}),
        (
            *("/api/extra/tokencount", {"prompt": "Hello", "special": False}),
            {"value": len(ids) - 1, "ids": ids[1:]},
        ),
        ("/v1/internal/encode", {"text": "Hello"}, {"tokens": ids, "length": len(ids)}),
        ("/v1/internal/token-count", {"text": "Hello"}, {"length": len(ids)}),
    ):
        assert client.post(path, json=body).json == told
    decoded = client.post("/v1/internal/decode", json={"tokens": ids}).json
    assert decoded["text"].endswith("Hello")
