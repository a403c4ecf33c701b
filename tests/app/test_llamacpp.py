"""llama.cpp's /completion, over a scripted backend."""

import json

import pytest

from switchyard import engine
from switchyard.engine.messages import Chunk, Failed, Finished
from tests.scripted import ScriptedBackend

pytestmark = pytest.mark.both_ways

URL = "/completion"

IDLE = {
    "n_predict": -1,
    "seed": -1,
    "cache_prompt": True,
    "id_slot": -1,
    "repeat_penalty": 1.0,
    "repeat_last_n": 64,
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "typical_p": 1.0,
    "n_probs": 0,
    "n_keep": 0,
    "grammar": "",
    "logit_bias": [],
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
}


def post(make_client, script=None, **body):
    backend = ScriptedBackend(script) if script else ScriptedBackend()
    response = make_client(backend, default_max_tokens=4).post(URL, json=body)
    return backend, response


@pytest.mark.parameter("prompt", "/completion")
def test_a_completion_has_content_and_why_it_stopped(make_client):
    backend, response = post(make_client, prompt="x", **IDLE)
    [job] = backend.enqueued
    assert response.json == {
        "index": 0,
        "content": "0 1 2 3 ",
        "stop": True,
        "model": "scripted",
        "stop_type": "limit",
        "stopping_word": "",
        "tokens_predicted": 4,
        "tokens_evaluated": len(job.prompt),
        "tokens_cached": 0,
        "truncated": False,
    }
    assert job.sampling.seed is None


def test_a_stream_ends_with_stop(make_client):
    _, response = post(make_client, prompt="x", n_predict=2, stream=True)
    bodies = [json.loads(part[6:]) for part in response.text.split("\n\n") if part]
    assert bodies[:2] == [
        {"index": 0, "content": "0 ", "stop": False},
        {"index": 0, "content": "1 ", "stop": False},
    ]
    assert (bodies[2]["stop"], bodies[2]["content"]) == (True, "")
    assert len(bodies) == 3


@pytest.mark.parametrize(
    ("reason", "stop_reason", "stop_type", "word"),
    [
        ("stop", None, "eos", ""),
        ("stop", "END", "word", "END"),
        ("stop", "loop", "none", ""),
        ("cancelled", None, "none", ""),
    ],
)
def test_how_it_ended_is_told(make_client, reason, stop_reason, stop_type, word):
    def script(job):
        yield Finished(job.identifier, reason, 1, 1, 0, stop_reason=stop_reason)

    _, response = post(make_client, script, prompt="x", stop=["END"])
    assert (response.json["stop_type"], response.json["stopping_word"]) == (stop_type, word)


@pytest.mark.parameter("n_predict")
@pytest.mark.parameter("repeat_penalty")
def test_its_names_reach_the_job(make_client):
    backend, _ = post(make_client, prompt="x", n_predict=7, repeat_penalty=1.1, seed=3)
    [job] = backend.enqueued
    assert (job.max_new_tokens, job.sampling.repetition_penalty, job.sampling.seed) == (7, 1.1, 3)


@pytest.mark.parameter("parse_special", "/completion")
def test_special_tokens_in_the_prompt_count_unless_told_otherwise(make_client):
    backend = ScriptedBackend()
    client = make_client(backend)
    token, token_id = next(iter(client.models.get().tokenizer.special_ids.items()))
    for more in ({}, {"parse_special": False}):
        client.post(URL, json={"prompt": f"x{token}y", **more})
    parsed, literal = [job.prompt for job in backend.enqueued]
    assert token_id in parsed and token_id not in literal


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"n_predict": -2}, "n_predict"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"cache_prompt": "no"}, "cache_prompt"),
        ({"n_probs": 5}, "n_probs"),
        ({"repeat_penalty": 1.1, "penalize_nl": True}, "penalize_nl"),
        ({"max_tokens": 5, "n_predict": 6}, "n_predict"),
    ],
    ids=str,
)
def test_what_can_not_be_honoured_is_named(make_client, more, param):
    _, response = post(make_client, **{"prompt": "x", **more})
    assert response.status_code == 400 and response.json["error"]["param"] == param


def test_a_failure_ends_the_stream(make_client):
    def script(job):
        yield Chunk(job.identifier, "0 ", (0,))
        yield Failed(job.identifier, engine.JobFailed("bad luck"))

    _, response = post(make_client, script, prompt="x", stream=True)
    assert '"code":"job_failed"' in response.text.split("\n\n")[1]
