"""What each key may use: by its own clock, and as clients are told."""

import pytest

from switchyard.app.exceptions import LimitReached
from switchyard.app.operations.guard import duration
from switchyard.app.operations.keys import parse_keys
from switchyard.app.operations.limits import Bucket, Quotas
from tests.app.conftest import wait_until_empty
from tests.conftest import wait_for
from tests.operations.conftest import bearer, entry
from tests.operations.ledgers import timed
from tests.scripted import ScriptedBackend, endless

URL = "/v1/completions"
BODY = {"prompt": "x", "max_tokens": 1}
ANTHROPIC = {"anthropic-version": "2023-06-01"}


def all_but_two(job):
    """The lookup of a prompt: all but two of its tokens are in the cache."""
    return timed(job, cached=max(len(job.prompt) - 2, 0))


# Buckets


def test_a_bucket_fills_by_its_size_in_a_minute(clock):
    bucket = Bucket(60, clock)
    assert [bucket.take() for _ in range(60)] == [0] * 60
    assert bucket.take() == pytest.approx(1)
    clock.now += 0.75
    assert bucket.take() == pytest.approx(0.25)
    assert bucket.level().remaining == 0  # three quarters are none
    clock.now += 0.25
    assert bucket.take() == 0
    clock.now += 3600
    assert bucket.level() == (60, 60, 0)


def test_a_level_may_fall_below_0_and_recovers(clock):
    bucket = Bucket(600, clock)
    bucket.owe(700)
    assert bucket.reserve(1) == pytest.approx(10.1)
    assert bucket.level() == (600, 0, pytest.approx(70))
    clock.now += 10.1
    assert bucket.reserve(1) == 0
    assert bucket.reserve(1) == pytest.approx(0.1)
    assert bucket.extend(5) == 0
    bucket.owe(0, given_back=1)
    assert bucket.extend(5) == 1


def test_what_is_owed_counts_from_when_it_was_owed(clock):
    bucket = Bucket(60, clock)
    clock.now += 10  # in which a full bucket gains nothing
    bucket.owe(30)
    assert bucket.level().remaining == 30
    bucket.owe(10)  # looked at later
    clock.now += 10
    assert bucket.level().remaining == 30
    bucket.owe(1)
    clock.now += 3600
    assert bucket.level().remaining == 60


def test_in_an_hour_it_lets_through_what_it_says(clock):
    bucket = Bucket(90, clock)
    taken = 0
    while clock.now < 1000 + 3600:
        taken += bucket.take() == 0
        clock.now += 0.1
    assert 90 * 60 <= taken <= 90 * 61


def test_what_was_used_stays_used_when_a_limit_changes(clock):
    quotas = Quotas(clock)
    [key] = parse_keys(entry("ann", rpm=10), 0).by_name.values()
    [other] = parse_keys(entry("ann", rpm=4), 0).by_name.values()
    [spender] = parse_keys(entry("bob", tpm=100), 0).by_name.values()
    [poorer] = parse_keys(entry("bob", tpm=90), 0).by_name.values()
    for _ in range(8):
        quotas.of(key).count_request()
    with pytest.raises(LimitReached, match="4 requests a minute"):
        quotas.of(other).count_request()
    assert quotas.of(key).requests.level().remaining == 2
    quotas.of(spender).tokens.owe(70)
    assert quotas.of(poorer).tokens.level().remaining == 20
    quotas.keep(())
    assert quotas.of(key).requests.level().remaining == 10


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0, "0ms"), (0.0115, "12ms"), (6.41, "6.5s"), (6, "6s"), (60.2, "1m1s"), (3600, "60m0s")],
)
def test_a_duration_is_told_as_openai_does(seconds, told):
    assert duration(seconds) == told


# Requests


def test_requests_a_minute(make_keyed, keys_file, clock):
    keys_file.write(entry("ann", rpm=2), entry("bob"))
    client = make_keyed(ScriptedBackend())
    remaining = []
    for _ in range(2):
        response = client.post(URL, json=BODY, headers=bearer("ann"))
        assert response.status_code == 200
        remaining.append(response.headers["x-ratelimit-remaining-requests"])
    assert remaining == ["1", "0"]
    response = client.post(URL, json=BODY, headers=bearer("ann"))
    assert response.status_code == 429
    error = response.json["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert error["message"] == (
        "the API key ann has reached its limit of 2 requests a minute; try again in 30 seconds"
    )
    assert response.headers["Retry-After"] == "30"
    assert response.headers["retry-after-ms"] == "30000"
    assert response.headers["x-ratelimit-limit-requests"] == "2"
    assert response.headers["x-ratelimit-remaining-requests"] == "0"
    assert response.headers["x-ratelimit-reset-requests"] == "1m0s"
    assert "x-ratelimit-limit-tokens" not in response.headers
    assert client.post(URL, json=BODY, headers=bearer("bob")).status_code == 200
    clock.now += 30
    assert client.post(URL, json=BODY, headers=bearer("ann")).status_code == 200


def test_what_asks_for_no_work_counts_as_no_request(make_keyed, keys_file):
    keys_file.write(entry("ann", rpm=1, concurrency=1))
    client = make_keyed(ScriptedBackend())
    for path in ("/v1/models", "/v1/requests", "/health/ready", "/version"):
        for _ in range(2):
            assert client.get(path, headers=bearer("ann")).status_code == 200
    assert client.post("/api/extra/abort", json={}, headers=bearer("ann")).status_code == 200
    assert client.post("/tokenize", json={"content": "x"}, headers=bearer("ann")).status_code == 200
    assert client.post("/tokenize", json={"content": "x"}, headers=bearer("ann")).status_code == 429


def test_anthropics_clients_are_told_under_their_names(make_keyed, keys_file):
    keys_file.write(entry("ann", rpm=1, tpm=100))
    client = make_keyed(ScriptedBackend())
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    headers = {**ANTHROPIC, **bearer("ann")}
    response = client.post("/v1/messages", json=body, headers=headers)
    assert response.status_code == 200
    assert response.headers["anthropic-ratelimit-tokens-limit"] == "100"
    response = client.post("/v1/messages", json=body, headers=headers)
    assert (response.status_code, response.json["error"]["type"]) == (429, "rate_limit_error")
    assert response.headers["retry-after-ms"] == "60000"
    told = client.get("/v1/models", headers=headers).headers
    assert told["anthropic-ratelimit-requests-remaining"] == "0"


# Requests at once


def ask_held(client, ask, gate, name, **more):
    """A request that is at work until the gate is opened."""
    answer = ask(client, {**BODY, **more}, headers=bearer(name))
    gate.wait_until_held()
    return answer


def test_requests_at_once(make_keyed, keys_file, ask, gate):
    keys_file.write(entry("ann", concurrency=1), entry("bob"))
    client = make_keyed(ScriptedBackend(gate=gate))
    answer = ask_held(client, ask, gate, "ann")
    response = client.post(URL, json=BODY, headers=bearer("ann"))
    assert response.status_code == 429
    assert "ann has reached its limit of 1 requests at once" in response.json["error"]["message"]
    assert response.headers["Retry-After"] == "1"
    gate.open()
    assert answer.get(timeout=20).status_code == 200
    assert client.post(URL, json=BODY, headers=bearer("bob")).status_code == 200


ENDS = {
    "refused": (400, {"temperature": -1}),
    "refused by the engine": (400, {"stop_token_ids": [2**30], "n": 2}),
    "no model": (404, {"model": "none"}),
    "too long": (400, {"prompt": "x " * 3000}),
    "served": (200, {}),
    "streamed": (200, {"stream": True}),
}


@pytest.mark.parametrize("way", ["iterator", "gunicorn"], indirect=True)
@pytest.mark.parametrize(("status", "more"), ENDS.values(), ids=ENDS)
def test_a_place_is_given_back_however_a_request_ends(make_keyed, keys_file, status, more):
    keys_file.write(entry("ann", concurrency=1))
    client = make_keyed(ScriptedBackend())
    for _ in range(3):
        response = client.post(URL, json={**BODY, **more}, headers=bearer("ann"))
        assert response.status_code == status
        response.get_data()
        response.close()


def test_a_place_is_given_back_where_the_next_limit_refuses(make_keyed, keys_file, clock):
    keys_file.write(entry("ann", concurrency=1, rpm=1))
    client = make_keyed(ScriptedBackend())
    for status in (200, 429, 429):
        with client.post(URL, json=BODY, headers=bearer("ann")) as response:
            assert response.status_code == status
    clock.now += 60
    with client.post(URL, json=BODY, headers=bearer("ann")) as response:
        assert response.status_code == 200


def test_a_place_is_given_back_when_a_failure_has_no_answer(make_keyed, keys_file, monkeypatch):
    class Panic(BaseException):
        pass

    def panic(*args):
        raise Panic

    keys_file.write(entry("ann", concurrency=1))
    client = make_keyed(ScriptedBackend())
    monkeypatch.setattr("switchyard.app.delivery.submit.read_bytes", panic)
    for _ in range(2):
        with pytest.raises(Panic):
            client.post(URL, json=BODY, headers=bearer("ann"))


def test_a_client_that_left_has_its_place_until_its_jobs_have_ended(make_keyed, keys_file, gate):
    keys_file.write(entry("ann", concurrency=1), entry("bob"))
    client = make_keyed(ScriptedBackend(endless, gate=gate))
    gate.step(3)
    streamed = client.post(URL, json={**BODY, "stream": True}, headers=bearer("ann"))
    next(iter(streamed.response))
    streamed.close()
    assert client.post(URL, json=BODY, headers=bearer("ann")).status_code == 429
    quota = client.application.extensions["switchyard"].checks.quotas._by_name["ann"]
    assert quota._num_requests == 1
    gate.open()
    wait_until_empty(client)
    wait_for(lambda: quota._num_requests == 0)  # by the alarms' thread


# Tokens


def test_tokens_a_minute_are_those_that_were_computed(make_keyed, keys_file, clock):
    keys_file.write(entry("ann", tpm=60))
    client = make_keyed(ScriptedBackend(all_but_two))
    prompt = list(range(3, 23))
    levels = []
    for max_tokens in (8, 24):
        body = {"prompt": prompt, "max_tokens": max_tokens}
        response = client.post(URL, json=body, headers=bearer("ann"))
        assert response.status_code == 200, response.json
        levels.append(response.headers["x-ratelimit-remaining-tokens"])
    # Of each prompt of 20 tokens two were computed.
    assert levels == ["50", "24"]
    response = client.post(URL, json=body, headers=bearer("ann"))
    assert response.status_code == 429
    assert "ann has reached its limit of 60 tokens a minute" in response.json["error"]["message"]
    assert response.headers["retry-after-ms"] == "3000"  # of the prompt and an eighth of 60
    clock.now += 3.1
    assert client.post(URL, json=body, headers=bearer("ann")).status_code == 200


# What a request may ask for


@pytest.mark.parametrize(
    ("asked", "n", "given", "prompts"),
    [
        *((None, 1, 6, 1), (5, 1, 5, 1), (50, 1, 6, 1), (50, 2, 3, 1), (None, 4, 1, 1)),
        *((None, 6, 1, 1), (50, 2, 1, 2)),
    ],
)
def test_new_tokens_of_a_request(make_keyed, keys_file, asked, n, given, prompts):
    keys_file.write(entry("ann", max_tokens=6))
    backend = ScriptedBackend()
    client = make_keyed(backend)
    body = {"prompt": ["x"] * prompts, "max_tokens": asked, "n": n}
    response = client.post(URL, json=body, headers=bearer("ann"))
    assert response.status_code == 200
    assert [job.max_new_tokens for job in backend.enqueued] == [given] * n * prompts
    is_cut = (asked or 16) > given  # which /v1/completions asks for by itself
    assert response.headers.get("X-Switchyard-Ignored") == ("max_tokens" if is_cut else None)
    client.get("/generate?prompt=x", headers=bearer("ann"))  # whose default is the server's
    assert backend.enqueued[-1].max_new_tokens == 6


def test_new_tokens_beyond_the_limit_are_refused_where_nothing_is_cut(make_keyed, keys_file):
    keys_file.write(entry("ann", max_tokens=6))
    client = make_keyed(ScriptedBackend(), clamp_max_tokens=False)
    body = {"prompt": "x", "max_tokens": 7}
    error = client.post(URL, json=body, headers=bearer("ann")).json["error"]
    assert error["message"] == "max_tokens: this API key allows at most 6 new tokens"
    assert error["param"] == "max_tokens"
    body = {"prompt": "x", "max_tokens": 1, "n": 7}
    response = client.post(URL, json=body, headers=bearer("ann"))
    assert (response.status_code, response.json["error"]["param"]) == (400, "n")


@pytest.mark.parametrize(
    ("own", "most", "asked", "given"),
    [
        *((-2, 1, None, -2), (-2, 1, -5, -5), (-2, 1, 1, 1), (-2, 1, 2, None)),
        *((-2, None, None, -2), (-2, None, -2, -2), (-2, None, -1, None), (-2, None, 0, None)),
        (-1, None, 0, None),
    ],
)
def test_priorities(make_keyed, keys_file, own, most, asked, given):
    limits = {"priority": own, **({} if most is None else {"max_priority": most})}
    keys_file.write(entry("ann", **limits), entry("bob"))
    backend = ScriptedBackend()
    client = make_keyed(backend, max_priority=3)
    body = {**BODY, **({} if asked is None else {"priority": asked})}
    response = client.post(URL, json=body, headers=bearer("ann"))
    assert response.status_code == (400 if given is None else 200)
    if given is None:
        assert response.json["error"]["param"] == "priority"
    else:
        assert backend.enqueued[-1].priority == given
    response = client.post(URL, json={**BODY, "priority": 3}, headers=bearer("bob"))
    assert (response.status_code, backend.enqueued[-1].priority) == (200, 3)
