"""Requests that wait too long: for their turn, for their first token, for their end."""

import threading

import pytest

from switchyard.engine.messages import Chunk, Started
from tests.app.conftest import frames, wait_until_empty
from tests.scripted import ScriptedBackend, finished, ticking

pytestmark = pytest.mark.both_ways

URL = "/v1/completions"
LONG = {"prompt": [1, 2, 3], "max_tokens": 2000}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("setting", "steps", "retry"),
    [
        ("queue_timeout", 0, None),
        ("first_token_timeout", 1, "false"),
        ("total_timeout", 0, "false"),
    ],
)
def test_a_deadline_before_the_first_byte_has_its_status(
    make_client, gate, stream, setting, steps, retry
):
    client = make_client(ScriptedBackend(gate=gate), **{setting: 0.2})
    gate.step(steps)
    response = client.post(URL, json={**LONG, "stream": stream})
    assert response.status_code == 408
    error = response.json["error"]
    assert (error["type"], error["code"]) == ("timeout_error", setting)
    assert "0.2 seconds" in error["message"]
    assert error["usage"] == {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}
    assert response.headers.get("x-should-retry") == retry
    gate.open()
    wait_until_empty(client)


def test_without_streaming_a_deadline_tells_the_tokens_so_far(make_client, gate):
    client = make_client(ScriptedBackend(gate=gate), total_timeout=1)
    gate.step(3)  # the start and two tokens
    response = client.post(URL, json=LONG)
    assert response.status_code == 408
    assert response.json["error"]["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    ("accept", "ending"),
    [
        ("*/*", '"code":"total_timeout","usage":%s}}\n\ndata: [DONE]\n\n'),
        ("application/x-ndjson", '"code":"total_timeout","usage":%s}}\n'),
        ("text/plain", "0 1 \n[error] the request did not end within 1 seconds\n"),
    ],
)
def test_a_deadline_after_the_first_byte_is_an_error_event(make_client, gate, accept, ending):
    client = make_client(ScriptedBackend(gate=gate))
    gate.step(3)
    response = client.post(
        URL, json={**LONG, "stream": True, "timeout": 1}, headers={"Accept": accept}
    )
    assert response.status_code == 200
    usage = '{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}'
    assert response.get_data(as_text=True).endswith(ending.replace("%s", usage))
    gate.open()
    wait_until_empty(client)


@pytest.mark.parameter("timeout")
def test_a_deadline_also_holds_while_tokens_come(make_client):
    client = make_client(ScriptedBackend(ticking))
    bodies = frames(client.post(URL, json={**LONG, "stream": True, "timeout": 1}))
    error = bodies[-1]["error"]
    assert error["code"] == "total_timeout"
    assert error["usage"]["completion_tokens"] == len(bodies) - 1 > 5
    response = client.post(URL, json={**LONG, "timeout": 0.3})
    assert response.status_code == 408
    wait_until_empty(client)


def test_deadlines_that_are_met_do_not_come_back(make_client):
    client = make_client(ScriptedBackend(ticking), queue_timeout=1, first_token_timeout=1)
    response = client.post(URL, json={**LONG, "timeout": 2})
    assert response.json["error"]["code"] == "total_timeout"
    wait_until_empty(client)


def test_a_job_that_computes_its_prompt_has_met_its_queues_deadline(make_client):
    """However long the prompt takes: its first token has a deadline of its own."""
    has_started, is_late = threading.Event(), threading.Event()

    def script(job):
        yield Started(job.identifier)
        has_started.set()
        assert is_late.wait(20)
        yield Chunk(job.identifier, "x", (0,))
        yield finished(job, 1)

    client = make_client(
        ScriptedBackend(script), queue_timeout=0.5, first_token_timeout=0, total_timeout=0
    )
    timer = threading.Timer(1.5, is_late.set)
    timer.start()
    response = client.post(URL, json=LONG)
    timer.join()
    assert has_started.is_set()
    assert response.status_code == 200, response.json


def test_a_timeout_above_the_servers_is_refused(make_client):
    client = make_client(ScriptedBackend(), total_timeout=10)
    for timeout, status in ((10, 200), (10.5, 400), (0, 400), ("5", 400), (float("inf"), 400)):
        response = client.post(URL, json={"prompt": "x", "timeout": timeout})
        assert response.status_code == status
        if status == 400:
            assert response.json["error"]["param"] == "timeout"


def test_no_limit_is_zero(make_client):
    client = make_client(ScriptedBackend(), queue_timeout=0, first_token_timeout=0, total_timeout=0)
    assert client.post(URL, json={"prompt": "x"}).status_code == 200
