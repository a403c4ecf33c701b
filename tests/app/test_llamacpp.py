"""llama.cpp's /completion, over a scripted backend."""

import json

import jsonschema_rs
import pytest

from switchyard.engine.messages import Chunk, Finished, TokenLogprob
from tests.app.refused import error_of
from tests.scripted import ScriptedBackend, says

pytestmark = pytest.mark.both_ways

URL = "/completion"

IDLE = {
    **{"n_predict": -1, "seed": -1, "cache_prompt": True, "id_slot": -1, "n_probs": 0, "n_keep": 0},
    **{"repeat_penalty": 1.0, "repeat_last_n": 64, "typical_p": 1.0, "grammar": ""},
    **{"mirostat": 0, "mirostat_tau": 5.0, "logit_bias": [], "dry_multiplier": 0.0},
    **{"dry_base": 1.75, "xtc_probability": 0.0, "xtc_threshold": 0.1},
}


def post(make_client, script=None, **body):
    backend = ScriptedBackend(script) if script else ScriptedBackend()
    response = make_client(backend, default_max_tokens=4).post(URL, json=body)
    return backend, response


@pytest.mark.parameter("prompt", "/completion")
def test_a_completion_has_content_and_why_it_stopped(make_client):
    backend, response = post(make_client, prompt="x", **IDLE)
    [job] = backend.enqueued
    body = response.json
    assert body.pop("timings")["predicted_n"] == 4
    told = {"n_predict": -1, "seed": 2**32 - 1, "repeat_penalty": 1, "typical_p": 1}
    told |= {"model": "scripted", "n_ctx": 2048}
    assert body.pop("generation_settings").items() >= told.items()
    assert body == {
        **{"index": 0, "content": "0 1 2 3 ", "tokens": [], "stop": True, "model": "scripted"},
        **{"prompt": "<s>x", "has_new_line": False, "stop_type": "limit", "stopping_word": ""},
        **{"tokens_predicted": 4, "tokens_evaluated": len(job.prompt), "tokens_cached": 0},
        "truncated": False,
    }
    assert job.sampling.seed is None


def bodies(response):
    return [json.loads(part[6:]) for part in response.text.split("\n\n") if part]


@pytest.mark.parameter("stream", "/completion")
def test_a_stream_tells_its_tokens_and_ends_with_stop(make_client):
    _, response = post(make_client, prompt="x", n_predict=2, stream=True)
    first, second, last = bodies(response)
    assert first == {"index": 0, "content": "0 ", "tokens": [0], "stop": False}
    assert second == {"index": 0, "content": "1 ", "tokens": [1], "stop": False}
    assert (last["stop"], last["content"], last["tokens"]) == (True, "", [])
    assert last["timings"]["predicted_n"] == 2 and last["generation_settings"]["n_predict"] == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_line_is_told(make_client, stream):
    _, response = post(make_client, says("a", "\n", "b"), prompt="x", stream=stream)
    assert bodies(response)[-1]["has_new_line"] if stream else response.json["has_new_line"]


@pytest.mark.parameter("return_tokens", "timings", "/completion")
def test_tokens_are_told_where_they_are_asked_for_and_timings_may_be_left_out(make_client):
    _, response = post(make_client, prompt="x", return_tokens=True, timings=False)
    assert response.json["tokens"] == [0, 1, 2, 3] and "timings" not in response.json


def in_order(jobs):
    """As their prompts are in the request; the engine takes the short ones first."""
    return sorted(jobs, key=lambda job: int(job.identifier.rpartition("-")[2]))


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ([5, 6, 7], [(5, 6, 7)]),
        ([[5, 6], [7]], [(5, 6), (7,)]),
        (["x", "y"], ["x", "y"]),
        ([[5, 6], "x"], [(5, 6), "x"]),
        ({"prompt_string": "x"}, ["x"]),
        ([[5], {"prompt_string": "x"}], [(5,), "x"]),
    ],
    ids=str,
)
def test_prompts_are_texts_or_tokens_and_each_has_an_answer(client, prompt, prompts):
    response = client.post(URL, json={"prompt": prompt, "n_predict": 2})
    tokenizer = client.models.get().tokenizer
    wanted = [tokenizer.encode(p, 9) if isinstance(p, str) else p for p in prompts]
    assert [job.prompt for job in in_order(client.backend.enqueued)] == wanted
    answers = response.json if len(prompts) > 1 else [response.json]
    assert [one["index"] for one in answers] == list(range(len(prompts)))
    assert {one["content"] for one in answers} == {"0 1 "}


def test_texts_and_tokens_in_turns_are_one_prompt(client):
    assert client.post(URL, json={"prompt": ["x", 7, "y"]}).status_code == 200
    tokenizer = client.models.get().tokenizer
    [job] = client.backend.enqueued
    without = tokenizer.encode("y", 9, add_bos=False)
    assert job.prompt == (*tokenizer.encode("x", 9), 7, *without)


def test_prompts_of_one_stream_are_told_apart(make_client):
    _, response = post(make_client, prompt=[[5], [6]], n_predict=1, stream=True)
    told = sorted((body["index"], body["stop"]) for body in bodies(response))
    assert told == [(0, False), (0, True), (1, False), (1, True)]


def scored(job):
    top = ((5, -0.5), (6, float("-inf")))
    yield Chunk(job.identifier, "a", (5,), (TokenLogprob(5, -0.5, top),))
    yield Finished(job.identifier, "length", 1, 1, 0)


@pytest.mark.parameter("n_probs", "/completion")
@pytest.mark.parametrize("stream", [False, True])
def test_probabilities_are_told_of_each_token(make_client, stream):
    client = make_client(ScriptedBackend(scored))
    response = client.post(URL, json={"prompt": "x", "n_probs": 2, "stream": stream})
    assert client.backend.enqueued[0].num_logprobs == 2
    [one] = (bodies(response)[0] if stream else response.json)["completion_probabilities"]
    piece = client.models.get().tokenizer.piece
    names = [piece(i).decode("utf-8", "replace") for i in (5, 6)]
    assert (one["id"], one["token"], one["bytes"]) == (5, names[0], list(piece(5)))
    assert one["logprob"] == -0.5
    assert [(t["id"], t["token"], t["logprob"]) for t in one["top_logprobs"]] == [
        (5, names[0], -0.5),
        (6, names[1], -9999.0),
    ]


@pytest.mark.parameter("response_fields", "/completion")
def test_an_answer_has_the_fields_that_are_asked_for(make_client):
    fields = ["content", "generation_settings/n_predict", "no/such", "timings/predicted_n"]
    fields.append("content/0")  # of a text
    body = {"prompt": "x", "n_predict": 2, "response_fields": fields}
    _, response = post(make_client, **body)
    told = {"generation_settings/n_predict": 2, "timings/predicted_n": 2}
    assert response.json == {"content": "0 1 ", **told}
    _, response = post(make_client, **body, stream=True)
    assert bodies(response)[-1] == {"content": "", **told}


@pytest.mark.parameter("logit_bias", "/completion")
@pytest.mark.parametrize(
    "bias",
    [[[5, 1.5], [7, 0], [" the the", False]], {"5": 1.5, "7": 0, " the the": False}],
    ids=["list", "object"],
)
def test_a_bias_is_for_an_id_or_for_each_token_of_a_text(client, bias):
    response = client.post(URL, json={"prompt": "x", "logit_bias": bias})
    assert response.status_code == 200
    texts = client.models.get().tokenizer.encode(" the the", 9, add_bos=False)
    biases = {5: 1.5, 7: 0, **dict.fromkeys(texts, -100)}
    assert dict(client.backend.enqueued[0].sampling.logit_bias) == biases
    told = response.json["generation_settings"]["logit_bias"]
    assert told == [{"token": token, "bias": value} for token, value in biases.items()]


@pytest.mark.parametrize(
    ("text", "least"),
    [("\u00b2", 1), ("9" * 10, 1), ("\U0002a6d6" * 200, 3)],
    ids=["nearly an id", "too long for one", "many tokens"],
)
def test_each_token_of_a_text_has_its_bias(make_client, text, least):
    backend, response = post(make_client, prompt="x", logit_bias={text: 1})
    assert response.status_code == 200, response.text
    assert {bias for _, bias in backend.enqueued[0].sampling.logit_bias} == {1}
    assert len(response.json["generation_settings"]["logit_bias"]) >= least


def test_tokens_that_would_end_the_text_are_told_as_ruled_out(client):
    response = client.post(URL, json={"prompt": "x", "ignore_eos": True})
    told = response.json["generation_settings"]["logit_bias"]
    ends = client.models.get().tokenizer.eos_token_ids
    assert ends and told == [{"token": token, "bias": None} for token in ends]


@pytest.mark.parameter("model", "/completion")
def test_whatever_the_model_is_called_it_answers_and_tells(make_client):
    _, response = post(make_client, prompt="x", model="gpt-3.5-turbo")
    assert response.status_code == 200 and response.json["model"] == "scripted"
    assert response.headers["X-Switchyard-Ignored"] == "model"
    _, response = post(make_client, prompt="x", model="scripted")
    assert "X-Switchyard-Ignored" not in response.headers


@pytest.mark.parametrize(
    ("reason", "stop_reason", "new_tokens", "told"),
    [
        ("stop", None, 2046, ("eos", "", False)),
        ("stop", "END", 1, ("word", "END", False)),
        ("stop", "loop", 1, ("none", "", False)),
        ("cancelled", None, 1, ("none", "", False)),
        ("length", None, 2045, ("limit", "", False)),
        ("length", None, 2046, ("limit", "", True)),  # it has filled the context
    ],
)
def test_how_it_ended_is_told(make_client, reason, stop_reason, new_tokens, told):
    def script(job):
        yield Finished(job.identifier, reason, 2, new_tokens, 0, stop_reason=stop_reason)

    _, response = post(make_client, script, prompt="x", stop=["END"])
    names = ("stop_type", "stopping_word", "truncated")
    assert tuple(response.json[name] for name in names) == told


@pytest.mark.parameter("n_predict")
@pytest.mark.parameter("repeat_penalty", "/completion")
def test_its_names_reach_the_job(make_client):
    backend, _ = post(make_client, prompt="x", n_predict=7, repeat_penalty=1.1, seed=3)
    [job] = backend.enqueued
    assert (job.max_new_tokens, job.sampling.repetition_penalty, job.sampling.seed) == (7, 1.1, 3)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"n_predict": -2}, "n_predict"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [1, ""]}, "prompt"),
        ({"prompt": [1, [2]]}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": {"prompt_string": "x", "multimodal_data": ["a"]}}, "prompt"),
        ({"prompt": [4096]}, "prompt"),
        ({"prompt": [1] * 2049, "n_predict": 0}, "prompt"),
        ({"logit_bias": [[5]]}, "logit_bias"),
        ({"logit_bias": [[5, True]]}, "logit_bias"),
        ({"logit_bias": [[True, 1]]}, "logit_bias"),
        ({"logit_bias": [[[5], 1]]}, "logit_bias"),
        ({"logit_bias": [5, [6, 1]]}, "logit_bias"),
        ({"logit_bias": {"x": True}}, "logit_bias"),
        ({"logit_bias": [["x" * 201, 1]]}, "logit_bias"),
        ({"logit_bias": {"x" * 201: 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"4096": 1}}, "logit_bias"),
        ({"post_sampling_probs": True}, "post_sampling_probs"),
        ({"response_fields": "content"}, "response_fields"),
        ({"cache_prompt": "no"}, "cache_prompt"),
        ({"n_probs": 21}, "n_probs"),
        ({"repeat_penalty": 1.1, "penalize_nl": True}, "penalize_nl"),
        ({"max_tokens": 5, "n_predict": 6}, "n_predict"),
    ],
    ids=str,
)
def test_what_can_not_be_honoured_is_named(make_client, more, param):
    _, response = post(make_client, **{"prompt": "x", **more})
    assert error_of(response)["param"] == param


def test_the_document_has_what_is_honoured(client):
    schemas = client.get("/openapi.json").json["components"]["schemas"]
    for name, good, bad in (
        ("prompt", [1, "x"], ([], [[]], [""], "", [1, ""])),
        ("logit_bias", {"x": False}, ({"x": True}, {"x": "1"}, {"x": None})),
        ("logit_bias", [[5, False]], ([[5]], [[5, True]], [[5, "1"]])),
    ):
        schema = {**schemas["LlamaCpp"]["properties"][name], "components": {"schemas": schemas}}
        validator = jsonschema_rs.validator_for(schema)
        assert validator.is_valid(good)
        assert not any(validator.is_valid(one) for one in bad), name


def test_without_new_tokens_a_prompt_that_just_fills_the_context_is_read(make_client):
    backend, response = post(make_client, prompt=[5] * 2048, n_predict=0, seed=0)
    assert (response.status_code, response.json["content"]) == (200, "")
    [job] = backend.enqueued
    assert (job.max_new_tokens, job.prompt_logprobs) == (0, 0)
    settings = response.json["generation_settings"]
    assert (settings["n_predict"], settings["seed"]) == (0, 0)


def test_a_token_without_text_is_in_the_stream(make_client):
    _, response = post(make_client, says("", ""), prompt="x", stream=True)
    assert [body["tokens"] for body in bodies(response)] == [[0], [1], []]


def test_each_of_several_prompts_has_the_whole_context(make_client):
    _, response = post(make_client, prompt=[[5] * 1500, [6] * 1500], n_predict=1)
    assert response.status_code == 200, response.text
    _, response = post(make_client, prompt=[[5], [6] * 2049], n_predict=1)
    assert error_of(response)["message"].startswith(
        "This model's maximum context length is 2048 tokens. However, the prompt has 2049 tokens"
    )
