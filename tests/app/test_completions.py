"""POST /v1/completions over a scripted backend."""

import re
import time

import pytest

from switchyard import engine
from switchyard.engine.messages import Chunk, Finished
from tests.app.conftest import frames
from tests.scripted import ScriptedBackend, slow

pytestmark = pytest.mark.both_ways
URL = "/v1/completions"


def test_a_completion_has_text_usage_and_the_shape_of_the_api(make_client):
    asked = int(time.time())
    body = make_client().post(URL, json={"prompt": "x", "max_tokens": 3}).json
    assert body.pop("id").startswith("cmpl-")
    assert body.pop("created") in range(asked, int(time.time()) + 1)
    assert re.fullmatch("fp_[0-9a-f]{12}", body.pop("system_fingerprint"))
    prompt_tokens = body["usage"]["prompt_tokens"]
    assert prompt_tokens >= 1
    assert body == {
        "object": "text_completion",
        "model": "scripted",
        "choices": [{"index": 0, "text": "0 1 2 ", "logprobs": None, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 3,
            "total_tokens": prompt_tokens + 3,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


@pytest.mark.parameter("max_tokens", "/v1/completions")
def test_a_whole_answer_is_not_woken_for_each_token(make_client, monkeypatch):
    takes, take = [], engine.Stream.take

    def counted(stream, timeout=None):
        takes.append(timeout)
        return take(stream, timeout)

    monkeypatch.setattr(engine.Stream, "take", counted)
    client = make_client(ScriptedBackend(slow))
    body = client.post(URL, json={"prompt": "Hi", "max_tokens": 100}).json
    assert body["choices"][0]["text"] == "x" * 100
    assert len(takes) < 20


@pytest.mark.parameter("n")
@pytest.mark.parameter("prompt", "/v1/completions")
def test_several_prompts_and_choices_are_numbered_by_prompt_then_choice(client):
    request = {"prompt": [[1, 2], [3]], "n": 2, "max_tokens": 1, "seed": 7, "echo": True}
    body = client.post(URL, json=request).json
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    jobs = sorted(client.backend.enqueued, key=lambda job: job.identifier)
    found = [(job.prompt, job.sampling.seed) for job in jobs]
    assert found == [((1, 2), 7), ((1, 2), 8), ((3,), 7), ((3,), 8)]
    counts = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert {name: body["usage"][name] for name in counts} == counts


@pytest.mark.parameter("echo")
def test_echo_puts_the_prompt_before_the_text(client):
    request = {"prompt": "Say ", "max_tokens": 2, "echo": True}
    assert client.post(URL, json=request).json["choices"][0]["text"] == "Say 0 1 "
    streamed = frames(client.post(URL, json={**request, "stream": True}))
    assert [f["choices"][0]["text"] for f in streamed] == ["Say ", "0 ", "1 ", ""]


def test_every_parameter_reaches_the_job(make_client):
    client = make_client(max_priority=3)
    sampling = {
        **{"temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 11},
        **{"repetition_penalty": 1.1, "frequency_penalty": -0.5, "presence_penalty": 0.25},
    }
    more = {"max_tokens": 9, "stop": "END", "stop_token_ids": [17], "min_tokens": 2}
    more |= {"ignore_eos": True, "priority": 3, "user": "somebody", "model": "scripted"}
    headers = {"Authorization": "Bearer abc", "X-Request-Id": "mine"}
    client.post(URL, json={"prompt": [5, 6], **sampling, **more}, headers=headers)
    [job] = client.backend.enqueued
    assert job == engine.Job(
        identifier=job.identifier,
        prompt=(5, 6),
        max_new_tokens=9,
        sampling=engine.Sampling(**sampling),
        stop_strings=("END",),
        stop_token_ids=(17,),
        min_new_tokens=2,
        ignore_eos=True,
        request_id="mine",
        kind="Completion",
        priority=3,
        client="address:127.0.0.1",
        owner="key-ba7816bf8f01cfea@127.0.0.1",
    )


def test_defaults_are_those_of_the_api(make_client):
    backend = ScriptedBackend()
    make_client(backend).post(URL, json={"prompt": "x", "temperature": None, "top_k": -1})
    [job] = backend.enqueued
    assert job.sampling == engine.Sampling()


def test_whose_share_a_request_takes_is_its_addresss_whatever_its_key(client):
    for headers in ({"Authorization": "Bearer abc"}, {"x-api-key": "d"}, {}):
        client.post(URL, json={"prompt": "x"}, headers=headers)
    client.post(URL, json={"prompt": "x"}, environ_overrides={"REMOTE_ADDR": "192.0.2.7"})
    clients = [job.client for job in client.backend.enqueued]
    assert clients == ["address:127.0.0.1"] * 3 + ["address:192.0.2.7"]


@pytest.mark.parameter("user")
def test_the_user_is_told_to_the_operator_alone(make_client, caplog):
    caplog.set_level("DEBUG")
    response = make_client().post(URL, json={"prompt": "x", "user": "Ann"})
    assert "1 jobs for user 'Ann'" in caplog.text
    assert "Ann" not in response.text


@pytest.mark.parametrize(("highest", "settings"), [(2, {"max_priority": 2}), (0, {})])
def test_a_priority_above_the_servers_is_refused_by_its_name(make_client, highest, settings):
    """Which is 0 where nobody has said otherwise: all may ask for it."""
    client = make_client(**settings)
    for taken in (-5, highest):
        assert client.post(URL, json={"prompt": "x", "priority": taken}).status_code == 200
    response = client.post(URL, json={"prompt": "x", "priority": highest + 1})
    assert response.status_code == 400 and response.json["error"]["param"] == "priority"


def test_a_stop_at_a_loop_is_told_streaming_or_not(make_client):
    def looping(job):
        while True:
            yield Chunk(job.identifier, "x", (7,))

    client = make_client(ScriptedBackend(looping), default_stop_on_loop=True)
    request = {"prompt": "x", "max_tokens": 100}
    whole = client.post(URL, json=request).json
    last = frames(client.post(URL, json={**request, "stream": True}))[-1]
    for [choice] in (whole["choices"], last["choices"]):
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "loop")


@pytest.mark.parameter("stop_on_loop")
def test_what_a_request_does_not_say_is_by_configuration(make_client):
    penalties = {"default_repetition_penalty": 1.1, "default_frequency_penalty": 0.5}
    client = make_client(**penalties, default_stop_on_loop=True)
    asked = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "stop_on_loop": False}
    for more in ({}, asked, dict.fromkeys(asked)):
        assert client.post(URL, json={"prompt": "x", **more}).status_code == 200
    assert [
        (j.sampling.repetition_penalty, j.sampling.frequency_penalty, j.stop_on_loop)
        for j in client.backend.enqueued
    ] == [(1.1, 0.5, True), (1.0, 0.0, False), (1.1, 0.5, True)]


def test_the_tokens_of_a_prompt_are_counted_once_for_all_its_choices(make_client):
    def script(job):
        cached_tokens = 4 if job.identifier.endswith(("-0", "-2")) else 9
        yield Finished(job.identifier, "stop", 10, 1, cached_tokens)

    request = {"prompt": ["x", "y"], "n": 2}
    body = make_client(ScriptedBackend(script)).post(URL, json=request).json
    assert {choice["finish_reason"] for choice in body["choices"]} == {"stop"}
    usage = body["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (20, 4)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 8}


def test_each_prompt_has_the_room_that_it_leaves(client):
    """By default it has 16 tokens."""
    body = {"prompt": [[5] * 2040, [5]], "n": 2}
    assert client.post(URL, json=body).status_code == 200
    rooms = {(len(job.prompt), job.max_new_tokens) for job in client.backend.enqueued}
    assert rooms == {(2040, 8), (1, 16)}
