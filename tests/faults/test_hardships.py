"""A server whose machine has no memory, disk, time or place left, under load. Minutes: by
`scripts/test -m hardship`.
"""

import concurrent.futures
import contextlib
import os
import pathlib
import resource
import signal
import subprocess
import time

import pytest
import requests

from tests.faults.conftest import SCRIPTED, children_of, worker_of
from tests.live.conftest import GUNICORN, ROOT
from tests.live.test_serving import greedy, in_threads

pytestmark = pytest.mark.hardship

URL = "/v1/completions"
LINKS = pytest.mark.parametrize("link", ["thread", "process"])
REFUSED = (400, 413, 429, 500, 503, 507)
# Each second an hour later or earlier than the one before.
CLOCK = "import time; now = time.time; time.time = lambda: now() + 3600 * (int(now()) % 2)\n"


def processes(server):
    """The server's: master, worker, and the engine's if it has one of its own."""
    found = [server.process.pid]
    for pid in found:
        found += children_of(pid)
    return found


def answer_to(server, number):
    response = server.post(URL, greedy(f"client {number % 4}", 40))
    return response.status_code, response.json().get("choices", [{}])[0].get("text")


def assert_serves_beside(server, attack, relieve=lambda: None):
    """Answers of good clients, beside attacks that may be refused, are those of the idle server, or
    clear refusals; and all are, once the attacks are over and `relieve` is done.
    """
    worker = worker_of(server)
    known = {number: answer_to(server, number) for number in range(4)}
    assert {status for status, _ in known.values()} == {200}
    found = in_threads(lambda n: attack(n) if n % 2 else answer_to(server, n), range(64))
    for number, answer in enumerate(found):
        if number % 2:
            assert answer in (200, *REFUSED)
        else:
            assert answer == known[number % 4] or answer[0] in REFUSED
    relieve()
    assert {number: answer_to(server, number) for number in range(4)} == known
    assert worker_of(server) == worker


@LINKS
def test_a_limit_of_memory_costs_whoever_meets_it(start, link):
    server = start(link=link, max_batch_size=16, max_body_bytes=8_000_000).wait_until_ready()
    limited = processes(server)[1:]
    for pid in limited:
        pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[0])
        size = pages * resource.getpagesize() + (64 << 20)
        resource.prlimit(pid, resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))

    def attack(number):
        with contextlib.suppress(requests.ConnectionError):
            body = {"prompt": "word " * 1_500_000, "max_tokens": 1}
            return server.post((URL, "/tokenize")[number // 2 % 2], body).status_code
        return 500  # closed: there was no memory for an answer

    def relieve():
        for pid in limited:
            resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)

    assert_serves_beside(server, attack, relieve)
    assert server.stop() == 0


@pytest.fixture
def full_disk(tmp_path):
    place = tmp_path / "full"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", place]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root may mount")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_costs_no_stream(start, full_disk):
    """The disk of temporary files and of the log is full."""
    redirect = f'exec "$@" >>{full_disk}/log 2>&1'
    command = ["env", f"TMPDIR={full_disk}", "sh", "-c", redirect, "sh", *GUNICORN]
    server = start(command, max_batch_size=16, max_body_bytes=8_000_000).wait_until_ready()
    with contextlib.suppress(OSError), (full_disk / "filler").open("wb") as file:
        file.write(b"x" * (1 << 20))

    def attack(number):
        files = {"prompt": ("prompt.txt", b"word " * 200_000)}
        return requests.post(f"{server.url}/generate", files=files, timeout=60).status_code

    assert_serves_beside(server, attack)
    assert server.stop() == 0


@LINKS
def test_a_clock_that_jumps_ends_nothing(start, tmp_path, link):
    (tmp_path / "sitecustomize.py").write_text(CLOCK)
    command = ["env", f"PYTHONPATH={tmp_path}:{ROOT}", *GUNICORN]
    server = start(command, link=link, max_batch_size=16).wait_until_ready()
    body = {"prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": True}

    def attack(number):
        response = server.post(URL, body)
        assert response.text.endswith("data: [DONE]\n\n") and '"error":{' not in response.text
        return response.status_code

    assert_serves_beside(server, attack)
    assert server.stop() == 0


@LINKS
@pytest.mark.parametrize("stopped", ["all", "master"])
def test_a_pause_longer_than_a_hang_costs_no_stream(start, link, stopped):
    server = start(link=link, hang_timeout=5, hang_exit=8).wait_until_ready()
    found = processes(server)
    stream = server.begin(max_tokens=1500, ignore_eos=True)
    for pid in found if stopped == "all" else found[:1]:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(20)
    for pid in found:
        os.kill(pid, signal.SIGCONT)
    *bodies, done = stream
    assert done == b"[DONE]" and not any(b'"error":{' in body for body in bodies)
    assert processes(server) == found
    assert server.stop() == 0


@LINKS
def test_600_streams_are_all_served(start, link):
    server = start(SCRIPTED, link=link, max_batch_size=300, max_pending=300).wait_until_ready()

    def ask(number):
        body = {"prompt": f"client {number}", "max_tokens": 200, "stream": True}
        response = server.post(URL, body)
        return response.status_code == 200 and response.text.endswith("data: [DONE]\n\n")

    assert in_threads(ask, range(600)) == [True] * 600
    assert server.rows() == []
    assert server.stop() == 0


@LINKS
@pytest.mark.parametrize("streams", [False, True])
def test_a_key_that_is_tried_again_across_a_restart_gets_its_whole_answer(start, link, streams):
    server = start(link=link, resume_timeout=60).wait_until_ready()
    body = greedy("x", 600, ignore_eos=True, stream=streams)
    whole = server.post(URL, body)
    headers = {"Idempotency-Key": "across"}

    def ask():
        with pytest.raises(requests.RequestException):
            server.post(URL, body, headers=headers)
        return "lost"

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        client = pool.submit(ask)
        server.wait_for(lambda: any(row["completion_tokens"] for row in server.rows()))
        os.kill(worker_of(server), signal.SIGKILL)
        assert client.result() == "lost"
    server.wait_until_ready()
    again = server.post(URL, body, headers=headers)
    assert again.status_code == 200
    if streams:
        assert again.text.endswith("data: [DONE]\n\n")
    else:
        assert again.json()["choices"] == whole.json()["choices"]
    assert server.stop() == 0
