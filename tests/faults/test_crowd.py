"""More clients than a server has room for, and an iteration that fails under all that it has."""

import json
import time

import requests

from tests.faults.conftest import SCRIPTED
from tests.faults.paced import FAIL_LATER
from tests.live.test_serving import in_threads

URL = "/v1/completions"


def test_500_clients_at_once_are_all_answered_and_served_if_they_come_again(start):
    """Against 16 places and a queue of 16; whoever is refused waits for as long as it is told."""
    server = start(SCRIPTED, max_batch_size=16, max_pending=16).wait_until_ready()
    statuses = []

    def ask(number):
        body = {"prompt": f"client {number}", "max_tokens": 10, "stream": number % 2 == 0}
        deadline = time.monotonic() + 110
        while time.monotonic() < deadline:
            response = server.post(URL, body)
            statuses.append(response.status_code)
            if response.status_code == 200:
                return number % 2 == 1 or response.text.endswith("data: [DONE]\n\n")
            assert response.status_code in (429, 503), response.text
            wait = int(response.headers["Retry-After"])
            assert 1 <= wait <= 120
            time.sleep(wait)
        return False

    assert in_threads(ask, range(500)) == [True] * 500
    assert statuses.count(200) == 500
    assert 429 in statuses  # how many depends on how fast the clients come
    assert server.rows() == []


def test_an_iteration_that_fails_ends_each_stream_once_and_those_that_wait_go_on(start):
    server = start(SCRIPTED, max_batch_size=32, max_pending=8).wait_until_ready()

    def ask(body):
        headers = {"X-Request-Id": "victim"} if body["seed"] == FAIL_LATER else {}
        body = {"prompt": "x", "stream": True, **body}
        with server.post(URL, body, stream=True, headers=headers) as response:
            lines = [line for line in response.iter_lines() if line.startswith(b"data: ")]
        assert lines[-1] == b"data: [DONE]"
        bodies = [json.loads(line[6:]) for line in lines[:-1]]
        return [body["error"]["code"] for body in bodies if "error" in body], bodies[-1]

    def begin(body):
        if body is None:  # who ends one of the 32 once the others wait, upon which all fail
            [victim] = [row["id"] for row in wait_for(40) if row["request_id"] == "victim"]
            return requests.delete(f"{server.url}/v1/requests/{victim}", timeout=60).status_code
        if body["max_tokens"] == 5:  # one that waits
            wait_for(32)
        return ask(body)

    def wait_for(count):
        """The list, once it is as long, and all have tokens that may."""

        def found():
            rows = server.rows()
            if len(rows) >= count and sum(row["completion_tokens"] > 0 for row in rows) == 32:
                return rows

        return server.wait_for(found)

    running = [{"max_tokens": 2000, "seed": FAIL_LATER if i == 7 else 0} for i in range(32)]
    waiting = [{"max_tokens": 5, "seed": 0} for _ in range(8)]
    *results, status = in_threads(begin, [*running, *waiting, None])
    assert status == 200
    codes, last = results.pop(7)
    assert codes == [] and last["choices"][0]["finish_reason"] == "cancelled"
    server.wait_until_ready()
    assert [codes for codes, _ in results[:31]] == [["batch_failed"]] * 31
    for codes, last in results[31:]:
        assert codes == [] and last["choices"][0]["finish_reason"] == "length"
    assert server.post(URL, {"prompt": "x", "max_tokens": 3}).status_code == 200
