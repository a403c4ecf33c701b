"""llama.cpp's /infill, over a scripted backend."""

import pytest

from switchyard.engine.messages import ModelInfo
from tests.app.refused import error_of
from tests.scripted import ScriptedBackend

pytestmark = pytest.mark.both_ways

FIM = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]


@pytest.fixture
def filling(make_client, with_tokens):
    """A client of a model that fills gaps."""
    backend = ScriptedBackend(info=ModelInfo(2048, 5000, 256, 64, "scripted"))
    return make_client(backend, path=with_tokens([*FIM, "<|endoftext|>"]))


@pytest.mark.parameter("input_prefix", "input_suffix", "input_extra")
@pytest.mark.parameter("prompt", "/infill")
def test_a_gap_is_filled_between_prefix_and_suffix(filling):
    body = {"input_prefix": "a", "input_suffix": "b", "prompt": "c", "n_predict": 2}
    body["input_extra"] = [{"filename": "x.py", "text": "y = 1"}]
    response = filling.post("/infill", json=body)
    assert response.json["content"] == "0 1 "
    prefix, suffix, mid, end = map(filling.models.get().tokenizer.token_id, [*FIM, "<|endoftext|>"])
    [job] = filling.backend.enqueued
    told = response.json["prompt"]
    assert told.endswith("--- x.py ---\n\ny = 1<fim_prefix>a<fim_suffix>b<fim_middle>c")
    assert [i for i in job.prompt if i in (prefix, suffix, mid)] == [prefix, suffix, mid]
    assert job.stop_token_ids == (end,)


# Fields of llama.vim's requests: for a gap, and, while its user pauses, of what it will send next.
EDITORS = (
    {
        "id_slot": 0,
        "input_prefix": "def add(a, b):\n",
        "input_suffix": "\nprint(add(1, 2))\n",
        "input_extra": [{"text": "y = 1\n", "time": [12, 345], "filename": "x.py"}],
        "prompt": "    ret",
        "n_predict": 2,
        **{"stop": [], "n_indent": 4, "top_k": 40, "top_p": 0.90},
        "samplers": ["top_k", "top_p", "infill"],
        **{"stream": False, "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 250},
        "response_fields": ["content", "timings/predicted_per_token_ms", "truncated"],
    },
    {
        "id_slot": 0,
        "input_prefix": "",
        "input_suffix": "",
        "input_extra": [{"text": "y = 1\n", "time": 12.5, "filename": ""}],
        **{"prompt": "", "n_predict": 0, "temperature": 0.0, "samplers": []},
        **{"stream": False, "cache_prompt": True, "t_max_prompt_ms": 1, "t_max_predict_ms": 1},
        "response_fields": [""],
    },
)


@pytest.mark.parametrize("body", EDITORS, ids=["gap", "ahead"])
def test_an_editors_request_is_served(filling, body):
    response = filling.post("/infill", json=body)
    assert response.status_code == 200, response.text
    assert len(filling.backend.enqueued) == 1
    wanted = {"content", "timings/predicted_per_token_ms", "truncated"}
    assert response.json.keys() == (wanted if body["n_predict"] else set())
    told = set(response.headers["X-Switchyard-Ignored"].split(","))
    idle = {"id_slot", "cache_prompt", "samplers", "t_max_prompt_ms", "t_max_predict_ms"}
    assert told - {"n_indent"} == {*idle, "input_extra.time"}
    assert ("n_indent" in told) == ("n_indent" in body)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input_prefix": None}, "input_prefix"),
        ({"input_suffix": None}, "input_suffix"),
        ({"input_extra": [{}]}, "input_extra[0].text"),
        ({"input_extra": [{"filename": "ok"}]}, "input_extra[0].text"),
        ({"input_extra": [{"filename": 123, "text": "x"}]}, "input_extra[0].filename"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"input_prefix": "word " * 4000}, "prompt"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_gap_that_can_not_be_is_named(filling, change, param):
    response = filling.post("/infill", json={"input_prefix": "a", "input_suffix": "b", **change})
    assert error_of(response)["param"].replace(".0.", "[0].") == param
    assert not filling.backend.enqueued


def test_a_model_that_fills_no_gaps_says_so(client):
    response = client.post("/infill", json={"input_prefix": "a", "input_suffix": "b"})
    assert error_of(response)["param"] == "input_suffix"


def test_a_repetition_gets_the_same_answer_from_the_same_job(filling):
    body = {"input_prefix": "a", "input_suffix": "b", "n_predict": 2}
    first, second = (
        filling.post("/infill", json=body, headers={"Idempotency-Key": "k-1"}) for _ in range(2)
    )
    assert (first.status_code, first.data) == (200, second.data)
    assert len(filling.backend.enqueued) == 1
