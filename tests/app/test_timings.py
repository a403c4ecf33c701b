"""How long a request took for what, on request."""

import json
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from switchyard import engine
from switchyard.app.delivery import timings as module
from switchyard.app.delivery.timings import WithRunningTimings, timings
from switchyard.engine.messages import Chunk, Prefill, PutBack, Started, Timings
from tests.app.conftest import frames
from tests.app.refused import error_of
from tests.scripted import ScriptedBackend, count, finished, job

pytestmark = pytest.mark.both_ways

TEXTS = {
    "/generate": {"prompt": "x", "max_tokens": 3, "stream": True},
    "/completion": {"prompt": "x", "n_predict": 3, "stream": True},
    "/api/extra/generate/stream": {"prompt": "x", "max_length": 3},
}
BESIDE = ("timings", "timings_per_token", "return_progress")
PATHS = {
    "/v1/completions": {"prompt": [1, 2, 3], "max_tokens": 3},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3},
}


def ended(prompt, new, cached, *seconds):
    return engine.Finished("a", "stop", prompt, new, cached, timings=Timings(*seconds))


def test_of_one_choice():
    assert timings([ended(110, 21, 10, 0.5, 0.2, 2.0)], 1) == {
        **{"queue_ms": 500, "cache_n": 10, "prompt_n": 100, "prompt_ms": 200},
        **{"prompt_per_token_ms": 2, "prompt_per_second": 500, "predicted_n": 21},
        **{"predicted_ms": 2000, "predicted_per_token_ms": 100, "predicted_per_second": 10},
    }


def test_of_guessed_tokens():
    one = replace(ended(100, 11, 0), draft_tokens=20, accepted_tokens=8)
    told = timings([one, replace(one, draft_tokens=4, accepted_tokens=1)], 2)
    assert (told["draft_n"], told["draft_n_accepted"]) == (24, 9)
    told = timings([replace(one, accepted_tokens=0)], 1)
    assert (told["draft_n"], told["draft_n_accepted"]) == (20, 0)


def test_of_several_choices_the_longest_times_and_all_tokens():
    silent, long = ended(130, 0, 30, 0.1, 0.1, 0.0), ended(130, 21, 30, 0.3, 0.2, 2.0)
    told = timings([silent, long, ended(130, 11, 30, 0.1, 0.1, 1.0)], 3)
    expected = {"queue_ms": 300, "prompt_ms": 200, "predicted_ms": 2000, "prompt_n": 100}
    expected |= {"cache_n": 30, "predicted_n": 32, "predicted_per_second": 15}
    assert told.items() >= expected.items()


def test_of_several_prompts_each_counts_once():
    told = timings([ended(130, 1, 30), ended(130, 1, 30), ended(17, 1, 2), ended(17, 1, 2)], 2)
    assert (told["prompt_n"], told["cache_n"]) == (100 + 15, 30 + 2)


def test_what_took_no_time_has_a_rate_of_0():
    told = timings([finished(job(), 0, "cancelled")], 1)
    assert told["prompt_per_second"] == told["prompt_per_token_ms"] == 0
    assert told["predicted_per_second"] == told["predicted_per_token_ms"] == 0


def test_a_single_token_has_no_decode_step():
    told = timings([ended(110, 1, 10, 0.5, 0.2, 0.0001)], 1)
    assert told["predicted_per_second"] == told["predicted_per_token_ms"] == 0


def test_the_rates_follow_from_the_times_beside_them():
    told = timings([ended(100, 17, 0, 0.1, 0.0123456, 0.0765432)], 1)
    assert abs(told["predicted_per_second"] - 16000 / told["predicted_ms"]) < 1e-6
    assert abs(told["prompt_per_token_ms"] - told["prompt_ms"] / 100) < 1e-6


@pytest.mark.parameter("timings", "/v1/completions")
@pytest.mark.parametrize("path", PATHS)
def test_a_whole_answer_tells_them_if_asked(client, path):
    told = client.post(path, json={**PATHS[path], "timings": True}).json["timings"]
    assert told["predicted_n"] == 3 and told["prompt_n"] > 0
    assert min(told["queue_ms"], told["prompt_ms"], told["predicted_ms"]) > 0
    assert "timings" not in client.post(path, json=PATHS[path]).json


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("with_usage", [False, True])
def test_the_last_body_of_a_stream_tells_them_if_asked(client, path, with_usage):
    body = {**PATHS[path], "n": 2, "stream": True, "timings": True}
    if with_usage:
        body["stream_options"] = {"include_usage": True}
    *others, last = frames(client.post(path, json=body))
    assert last["timings"]["predicted_n"] == 6
    assert ("usage" in last) == with_usage
    assert not any("timings" in other for other in others)


def test_a_prompt_counts_once_for_all_of_which_the_best_is_told(client):
    body = {"prompt": ["x", "x y z"], "best_of": 2, "timings": True}
    told = client.post("/v1/completions", json=body).json
    read = told["timings"]["prompt_n"] + told["timings"]["cache_n"]
    assert read == told["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        *(("/v1/completions", {name: True}) for name in (*BESIDE, "return_token_ids")),
        *(("/generate", {name: True}) for name in BESIDE),
        ("/v1/completions", {"logprobs": 0}),
    ],
    ids=str,
)
def test_bare_text_has_no_room_for_more(client, path, asked):
    body = {"prompt": "x", "stream": True, **asked}
    response = client.post(path, json=body, headers={"Accept": "text/plain"})
    assert [error_of(response)["param"]] == [*asked]


STREAMS = {**{path: {**body, "stream": True} for path, body in PATHS.items()}, **TEXTS}


@pytest.mark.parameter("timings_per_token")
@pytest.mark.parametrize("path", STREAMS)
def test_each_body_with_new_tokens_tells_those_until_then(make_client, path):
    def script(job):
        yield Started(job.identifier)
        yield Prefill(job.identifier, 1, 1, 1)
        yield from count(replace(job, max_new_tokens=3))

    client = make_client(ScriptedBackend(script))
    body = {**STREAMS[path], "timings_per_token": True}
    lines = client.post(path, json=body).text.splitlines()
    bodies = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    *running, last = [one["timings"] for one in bodies if "timings" in one]
    assert [one["predicted_n"] for one in running] == [1, 2, 3]
    assert [one["cache_n"] for one in running] == [1, 1, 1]
    times = [one["predicted_ms"] for one in running]
    assert times[0] == 0 and times == sorted(times)
    assert "timings" in bodies[-1] and last["predicted_n"] == 3


@pytest.mark.parametrize("path", PATHS)
def test_each_choice_has_its_own_until_then(client, path):
    body = {**PATHS[path], "n": 2, "stream": True, "timings_per_token": True}
    *bodies, last = frames(client.post(path, json=body))
    for index in (0, 1):
        own = [one for one in bodies if one["choices"][0]["index"] == index and "timings" in one]
        assert [one["timings"]["predicted_n"] for one in own] == [1, 2, 3]
    assert last["timings"]["predicted_n"] == 6


def test_a_job_that_starts_over_counts_anew():
    """Its prompt, which the cache had, may be there no more."""
    render = WithRunningTimings(Mock(side_effect=lambda _: [({}, "x")]), {"a": 8})
    token = Chunk("a", "x", (1,))
    events = [Started("a", 0.5), Prefill("a", 6, 8, 2), token, PutBack("a"), Started("a"), token]
    told = [body["timings"] for body, _ in render(events) if "timings" in body]
    counts = [(one["prompt_n"], one["cache_n"], one["predicted_n"]) for one in told]
    assert counts == [(6, 2, 1), (8, 0, 1)]
    assert render.text_body("a") is None


def test_the_time_until_the_first_token_is_of_the_prompt_but_for_the_queue(monkeypatch):
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=10.0)
    monkeypatch.setattr(module, "time", clock)
    render = WithRunningTimings(Mock(side_effect=lambda _: [({}, "x")]), {"a": 8})
    told = []
    for clock.now in (14.0, 16.0):  # the start comes with the first token
        token = Chunk("a", "x", (1,))
        told += [b["timings"] for b, _ in render([Started("a", 3.0), token]) if "timings" in b]
    times = [(one["queue_ms"], one["prompt_ms"], one["predicted_ms"]) for one in told]
    assert times == [(3000, 1000, 0), (3000, 1000, 2000)]


def test_without_a_stream_there_are_none_until_then(client):
    for path, body in PATHS.items():
        response = client.post(path, json={**body, "timings_per_token": True})
        assert response.headers["X-Switchyard-Ignored"] == "timings_per_token"
        assert "timings" not in response.json


def test_the_role_of_a_chat_has_none_until_then(make_client):
    def script(job):
        yield Chunk(job.identifier, "", (1,))  # bytes that are no character yet
        yield from count(job)

    client = make_client(ScriptedBackend(script))
    body = {**PATHS["/v1/chat/completions"], "stream": True, "timings_per_token": True}
    role, *others = frames(client.post("/v1/chat/completions", json=body))
    assert role["choices"][0]["delta"]["role"] and "timings" not in role
    assert [one["timings"]["predicted_n"] for one in others if "timings" in one] == [2, 3, 4, 3]
