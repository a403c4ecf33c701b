"""KoboldAI's, KoboldCpp's and text-generation-webui's routes, over a scripted backend."""

import json

import pytest

from switchyard import engine
from switchyard.engine.messages import Chunk, Failed, Prefill, Started
from tests.scripted import ScriptedBackend, finished

pytestmark = pytest.mark.both_ways

GENERATE, STREAM = "/api/v1/generate", "/api/extra/generate/stream"

# As KoboldAI Lite and SillyTavern send them, every sampler off.
IDLE = {
    "n": 1,
    "max_context_length": 2048,
    "rep_pen": 1,
    "rep_pen_range": 360,
    "rep_pen_slope": 0.7,
    "top_k": 0,
    "top_a": 0,
    "typical": 1,
    "tfs": 1,
    "min_p": 0,
    "dynatemp_range": 0,
    "dynatemp_exponent": 1,
    "smoothing_factor": 0,
    "mirostat": 0,
    "mirostat_tau": 5,
    "mirostat_eta": 0.1,
    "xtc_threshold": 0.2,
    "xtc_probability": 0,
    "dry_multiplier": 0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_sequence_breakers": ["\n"],
    "sampler_order": [6, 5, 0, 1, 3, 4, 2],
    "sampler_seed": -1,
    "use_default_badwordsids": False,
    "ban_eos_token": False,
    "banned_tokens": [],
    "memory": "",
    "grammar": "",
    "quiet": True,
    "trim_stop": True,
    "genkey": "KCPP1",
    "stop_sequence": [],
}
TEXTGEN_IDLE = {
    "preset": "None",
    "do_sample": True,
    "typical_p": 1,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "tfs": 1,
    "top_a": 0,
    "repetition_penalty": 1,
    "repetition_penalty_range": 0,
    "top_k": 0,
    "min_length": 0,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "penalty_alpha": 0,
    "length_penalty": 1,
    "early_stopping": False,
    "mirostat_mode": 0,
    "mirostat_tau": 5,
    "mirostat_eta": 0.1,
    "guidance_scale": 1,
    "negative_prompt": "",
    "seed": -1,
    "add_bos_token": True,
    "truncation_length": 2048,
    "ban_eos_token": False,
    "skip_special_tokens": True,
    "stopping_strings": [],
}


def job_of(make_client, body, path=GENERATE, **more):
    client = make_client(**more)
    response = client.post(path, json=body)
    assert response.status_code == 200, response.json
    [job] = client.backend.enqueued
    return job, response


@pytest.mark.parameter("prompt", "/api/v1/generate")
def test_a_text_is_a_result(make_client):
    job, response = job_of(make_client, {"prompt": "x", "max_length": 3, **IDLE})
    [result] = response.json["results"]
    assert (result["text"], result["finish_reason"]) == ("0 1 2 ", "length")
    assert (result["prompt_tokens"], result["completion_tokens"]) == (len(job.prompt), 3)
    assert job.sampling.seed is None and job.sampling.repetition_penalty == 1


@pytest.mark.parameter("n", "/api/v1/generate")
def test_several_texts_are_several_results(make_client):
    client = make_client()
    results = client.post(GENERATE, json={"prompt": "x", "n": 3, "max_length": 1}).json["results"]
    assert [result["text"] for result in results] == ["0 "] * 3


@pytest.mark.parameter("max_length")
@pytest.mark.parameter("rep_pen")
@pytest.mark.parameter("sampler_seed")
@pytest.mark.parameter("stop_sequence")
@pytest.mark.parameter("bypass_eos")
def test_its_names_reach_the_job(make_client):
    body = {
        "prompt": "x",
        "max_length": 7,
        "rep_pen": 1.1,
        "sampler_seed": 5,
        "stop_sequence": ["END"],
        "trim_stop": False,
        "bypass_eos": True,
    }
    job, _ = job_of(make_client, body)
    assert (job.max_new_tokens, job.stop_strings, job.ignore_eos) == (7, ("END",), True)
    assert job.include_stop
    assert (job.sampling.repetition_penalty, job.sampling.seed) == (1.1, 5)


@pytest.mark.parameter("max_new_tokens")
@pytest.mark.parameter("stopping_strings")
@pytest.mark.parameter("min_length")
def test_textgens_names_reach_the_job(make_client):
    body = {
        "prompt": "x",
        "max_new_tokens": 7,
        "repetition_penalty": 1.1,
        "seed": 5,
        "stopping_strings": ["END"],
        "min_length": 2,
        "do_sample": False,
        "temperature": 0.7,
    }
    job, _ = job_of(make_client, body)
    assert (job.max_new_tokens, job.stop_strings, job.min_new_tokens) == (7, ("END",), 2)
    assert (job.sampling.repetition_penalty, job.sampling.seed) == (1.1, 5)
    assert job.sampling.temperature == 0


@pytest.mark.parameter("grammar_string")
def test_the_limit_of_textgen_beside_names_that_only_kobold_has_is_its_other_name(make_client):
    job, response = job_of(make_client, {"prompt": "x", "max_new_tokens": 2, "genkey": "K"})
    assert (response.status_code, job.max_new_tokens) == (200, 2)


@pytest.mark.parametrize(
    ("limit", "name"), [("max_length", "grammar"), ("max_new_tokens", "grammar_string")]
)
def test_a_grammar_constrains_the_text(make_client, limit, name):
    grammar = 'root ::= "yes" | "no"'
    job, _ = job_of(make_client, {"prompt": "x", limit: 3, name: grammar})
    assert job.constraint is not None
    client = make_client()
    wrong = client.post(GENERATE, json={"prompt": "x", limit: 3, name: "root ::= ("})
    assert wrong.status_code == 400 and wrong.json["error"]["param"] == name


def test_textgens_samplers_may_be_said_to_be_off(make_client):
    _, response = job_of(make_client, {"prompt": "x", "max_new_tokens": 2, **TEXTGEN_IDLE})
    assert response.json["results"][0]["text"] == "0 1 "


@pytest.mark.parameter("parse_special", "/api/v1/generate")
@pytest.mark.parametrize("limit", ["max_length", "max_new_tokens"])
def test_special_tokens_in_the_prompt_count_unless_told_otherwise(make_client, limit):
    client = make_client()
    token, token_id = next(iter(client.models.get().tokenizer.tag_ids.items()))
    for more in ({}, {"parse_special": False}):
        client.post(GENERATE, json={"prompt": f"x{token}y", limit: 1, **more})
    parsed, literal = [job.prompt for job in client.backend.enqueued]
    assert token_id in parsed and token_id not in literal


@pytest.mark.parameter("max_context_length")
@pytest.mark.parameter("truncation_length")
@pytest.mark.parametrize(
    ("limit", "context"),
    [("max_length", "max_context_length"), ("max_new_tokens", "truncation_length")],
)
def test_a_limit_of_the_context_is_kept_by_refusal(make_client, limit, context):
    client = make_client()
    response = client.post(GENERATE, json={"prompt": "x " * 50, limit: 10, context: 20})
    assert response.status_code == 400
    assert response.json["error"]["param"] == context
    assert response.json["error"]["code"] == "context_length_exceeded"
    body = {"prompt": "x " * 50, limit: 5000, context: 100_000}  # more than the model's
    assert client.post(GENERATE, json=body).status_code == 200


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"max_length": 0}, "max_length", "invalid_value"),
        ({"rep_pen": 100}, "rep_pen", "invalid_value"),
        ({"tfs": 1.9}, "tfs", "invalid_value"),
        ({"mirostat": 1}, "mirostat", "invalid_value"),
        ({"sampler_order": [6, 5, 0, 2, 1, 3]}, "sampler_order", "invalid_value"),
        ({"memory": "once"}, "memory", "unsupported_parameter"),
        ({"stop_sequence": [""]}, "stop_sequence.0", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
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
    response = make_client().post(GENERATE, json={"prompt": "x", **more})
    assert response.status_code == 400
    assert (response.json["error"]["param"], response.json["error"]["code"]) == (param, code)


@pytest.mark.parameter("prompt", "/api/extra/generate/stream")
def test_a_stream_tells_tokens_and_at_last_why_it_ended(make_client):
    _, response = job_of(make_client, {"prompt": "x", "max_length": 2}, STREAM)
    blocks = [block for block in response.text.split("\n\n") if block]
    assert all(block.startswith("event: message\ndata: ") for block in blocks)
    assert [json.loads(block.partition("data: ")[2]) for block in blocks] == [
        {"token": "0 ", "finish_reason": None},
        {"token": "1 ", "finish_reason": None},
        {"token": "", "finish_reason": "length"},
    ]


def test_a_stream_is_of_one_text(make_client):
    response = make_client().post(STREAM, json={"prompt": "x", "n": 2})
    assert response.status_code == 400 and response.json["error"]["param"] == "n"


def test_a_stream_that_fails_ends_with_an_error(make_client):
    def script(job):
        yield Started(job.identifier)
        yield Chunk(job.identifier, "x", (0,))
        yield Failed(job.identifier, engine.JobFailed("no more"))

    text = make_client(ScriptedBackend(script)).post(STREAM, json={"prompt": "x"}).text
    names = [line for line in text.splitlines() if line.startswith("event: ")]
    assert names == ["event: message", "event: error"]


@pytest.mark.parametrize(
    ("order", "is_last"),
    [([6, 5, 0, 1, 3, 4, 2], False), ([6, 0, 1, 3, 4, 2, 5], True), ([5, 6, 4, 2, 0, 1, 3], False)],
)
@pytest.mark.parameter("sampler_order")
def test_an_order_of_samplers_counts_as_far_as_they_are_on(make_client, order, is_last):
    client = make_client()
    body = {"prompt": "x", "max_length": 1, "temperature": 0.5, "top_p": 0.9}
    answer = client.post("/api/v1/generate", json={**body, "sampler_order": order})
    assert answer.status_code == 200, answer.json
    [job] = client.backend.enqueued
    assert job.sampling.temperature_last is is_last


@pytest.mark.parametrize(
    ("more", "is_told"),
    [
        ({}, False),
        ({"rep_pen": 1, "top_k": -1}, False),
        ({"rep_pen": 1.1}, True),
        ({"top_k": 5}, True),
        ({"top_a": 0.5}, True),
        ({"tfs": 0.5}, True),
        ({"typical": 0.5}, True),
    ],
)
def test_an_order_is_told_as_ignored_for_samplers_that_are_on(make_client, more, is_told):
    client = make_client()
    body = {"prompt": "x", "max_length": 1, "top_p": 0.9, **more}
    client.post(GENERATE, json=body)
    answer = client.post(GENERATE, json={**body, "sampler_order": [5, 1, 4, 3, 2, 0, 6]})
    assert ("X-Switchyard-Ignored" in answer.headers) is is_told
    assert not any(job.sampling.temperature_last for job in client.backend.enqueued)


@pytest.mark.parametrize(
    ("temperature", "spread", "bounds"),
    [(1.25, 0.75, (0.5, 2.0)), (0.5, 1, (0, 1.5)), (4.5, 1, (3.5, 5)), (0.7, 0, (0, 0))],
)
@pytest.mark.parameter("dynatemp_range")
def test_a_range_of_temperatures_is_about_the_temperature(make_client, temperature, spread, bounds):
    more = {"temperature": temperature, "dynatemp_range": spread, "dynatemp_exponent": 2.0}
    job, _ = job_of(make_client, {"prompt": "x", "max_length": 1, **more})
    assert (job.sampling.dynatemp_low, job.sampling.dynatemp_high) == pytest.approx(bounds)
    assert job.sampling.dynatemp_exponent == (2 if spread else 1)


def test_an_order_that_names_a_sampler_twice_is_told(make_client):
    body = {"prompt": "x", "max_length": 1, "sampler_order": [6, 5, 0, 2, 1, 3, 3]}
    answer = make_client().post(GENERATE, json=body)
    assert answer.status_code == 200
    assert answer.headers["X-Switchyard-Ignored"] == "sampler_order"


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
    error = client.post(GENERATE, json=body).json["error"]
    assert (error["param"], error["code"]) == ("return_progress", "unknown_parameter")


@pytest.mark.parametrize(
    ("given", "stays"), [({}, False), ({"trim_stop": True}, False), ({"trim_stop": False}, True)]
)
def test_a_stop_sequence_is_cut_off_unless_asked_otherwise(make_client, given, stays):
    job, _ = job_of(make_client, {"prompt": "x", "stop_sequence": ["END"], **given})
    assert job.include_stop is stays


@pytest.mark.parameter("prompt", "/api/extra/tokencount")
@pytest.mark.parameter("special", "/api/extra/tokencount")
@pytest.mark.parameter("text", "/v1/internal/encode")
@pytest.mark.parameter("tokens", "/v1/internal/decode")
def test_tokens_are_counted_as_those_of_a_prompt(make_client):
    job, _ = job_of(make_client, {"prompt": "Hello", "max_length": 1})
    client = make_client()
    ids = list(job.prompt)
    counted = client.post("/api/extra/tokencount", json={"prompt": "Hello"}).json
    assert counted == {"value": len(ids), "ids": ids}
    counted = client.post("/api/extra/tokencount", json={"prompt": "Hello", "special": False}).json
    assert counted == {"value": len(ids) - 1, "ids": ids[1:]}
    encoded = client.post("/v1/internal/encode", json={"text": "Hello"}).json
    assert encoded == {"tokens": ids, "length": len(ids)}
    length = client.post("/v1/internal/token-count", json={"text": "Hello"}).json
    assert length == {"length": len(ids)}
    decoded = client.post("/v1/internal/decode", json={"tokens": ids}).json
    assert decoded["text"].endswith("Hello")
