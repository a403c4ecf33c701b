"""More clients than a server has room for, and an iteration that fails under all that it has."""

import collections
import json
import threading
import time

import requests

from tests.faults.conftest import SCRIPTED
from tests.faults.paced import FAIL
from tests.live.test_serving import in_threads

URL = "/v1/completions"


def test_500_clients_at_once_are_all_answered_and_served_if_they_come_again(start):
    """Against 16 places and a queue of 64; whoever is refused waits for as long as it is told."""
    server = start(SCRIPTED, max_batch_size=16, max_pending=64).wait_until_ready()
    statuses = collections.Counter()
    lock = threading.Lock()

    def ask(number):
        body = {"prompt": f"client {number}", "max_tokens": 20, "stream": number % 2 == 0}
        deadline = time.monotonic() + 110
        while time.monotonic() < deadline:
            response = server.post(URL, body)
            with lock:
                statuses[response.status_code] += 1
            if response.status_code == 200:
                return number % 2 == 1 or response.text.endswith("data: [DONE]\n\n")
            assert response.status_code in (429, 503), response.text
            wait = int(response.headers["Retry-After"])
            assert 1 <= wait <= 120
            time.sleep(wait)
        return False

    assert in_threads(ask, range(500)) == [True] * 500
    assert statuses[200] == 500
    assert statuses[429] > 100
    assert requests.get(f"{server.url}/v1/requests", timeout=10).json()["data"] == []


def test_an_iteration_that_fails_ends_each_stream_once_and_those_that_wait_go_on(start):
    server = start(SCRIPTED, max_batch_size=32, max_pending=8).wait_until_ready()

    def ask(body):
        with server.post(URL, {"prompt": "x", "stream": True, **body}, stream=True) as response:
            lines = [line for line in response.iter_lines() if line.startswith(b"data: ")]
        assert lines[-1] == b"data: [DONE]"
        bodies = [json.loads(line[6:]) for line in lines[:-1]]
        return [body["error"]["code"] for body in bodies if "error" in body], bodies[-1]

    def begin(body):
        if body["max_tokens"] == 5:  # one that waits
            deadline = time.monotonic() + 20
            while num_requests(server) < 32:
                assert time.monotonic() < deadline
        return ask(body)

    running = [{"max_tokens": 1000, "seed": FAIL if i == 7 else 0} for i in range(32)]
    waiting = [{"max_tokens": 5, "seed": 0} for _ in range(8)]
    results = in_threads(begin, [*running, *waiting])
    ended = time.monotonic()
    while requests.get(f"{server.url}/health/ready", timeout=10).status_code != 200:
        assert time.monotonic() < ended + 2
    assert [codes for codes, _ in results[:32]] == [["batch_failed"]] * 32
    for codes, last in results[32:]:
        assert codes == [] and last["choices"][0]["finish_reason"] == "length"
    assert server.post(URL, {"prompt": "x", "max_tokens": 3}).status_code == 200


def num_requests(server):
    return len(requests.get(f"{server.url}/v1/requests", timeout=10).json()["data"])
