"""How a server ends: what runs may end first, what comes is told so, nothing is cut off."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest
import requests

from switchyard.server.worker import LAST_WRITES
from tests.faults.conftest import SCRIPTED, open_request, read_all, worker_of
from tests.faults.paced import FLOOD

URL = "/v1/completions"


def stream(server, max_tokens, results, started):
    """Read a stream to its end: the texts, the last body, whether [DONE] came."""
    body = {"prompt": "x", "max_tokens": max_tokens, "stream": True}
    with server.post(URL, body, stream=True) as response:
        lines = (line for line in response.iter_lines() if line.startswith(b"data: "))
        first = next(lines)
        started.release()
        frames = [first, *lines]
    is_done = frames[-1] == b"data: [DONE]"
    results.append((len(frames), json.loads(frames[-2][6:]) if is_done else None))


def end(server, how):
    match how:
        case "SIGTERM" | "SIGINT":
            server.process.send_signal(getattr(signal, how))
        case "Ctrl-C":  # a terminal sends it to all processes of the group
            server.process.send_signal(signal.SIGINT)
            os.kill(worker_of(server), signal.SIGINT)
        case "/admin/drain":
            assert requests.post(f"{server.url}{how}", timeout=10).status_code == 202


def wait_until_not_ready(server):
    deadline = time.monotonic() + 20
    while get(server, "/health/ready")[0] == 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def get(server, path):
    response = requests.get(f"{server.url}{path}", timeout=10)
    return response.status_code, response.json()


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "Ctrl-C", "/admin/drain"])
def test_every_stream_ends_with_done_and_newcomers_are_told(start, how):
    server = start(SCRIPTED, grace=8).wait_until_ready()
    results, started = [], threading.Semaphore(0)
    threads = [
        threading.Thread(target=stream, args=(server, max_tokens, results, started))
        for max_tokens in [100] * 16 + [2000] * 16  # 1 second, and 20
    ]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert started.acquire(timeout=30)
    end(server, how)
    wait_until_not_ready(server)
    for _ in range(3):  # within the grace
        response = server.post(URL, {"prompt": "x"})
        assert response.status_code == 503
        assert int(response.headers["Retry-After"]) >= 1
        assert response.json()["error"]["code"] == "overloaded"
        assert get(server, "/health/live")[0] == 200
        status, body = get(server, "/health/ready")
        assert status == 503 and body["models"]["tiny"] == "draining"
    for thread in threads:
        thread.join(30)
    assert len(results) == 32
    ends = [last for _, last in results]
    complete = [e for e in ends if "choices" in e and e["choices"][0]["finish_reason"] == "length"]
    cut = [e for e in ends if "error" in e and e["error"]["code"] == "shutting_down"]
    assert (len(complete), len(cut)) == (16, 16)
    assert server.process.wait(20) == 0


def status_over(path, method, url, headers):
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(20)
    connection.sock.connect(path)
    connection.request(method, url, headers=headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_a_server_on_a_unix_socket_says_how_to_reach_it_and_drains(start, tmp_path):
    path = str(tmp_path / "a socket")
    server = start(SCRIPTED, bind=f"unix:{path}")
    deadline = time.monotonic() + 60
    while "Try: " not in server.output:
        assert time.monotonic() < deadline and server.process.poll() is None, server.output
        time.sleep(0.05)
    assert f"at unix:{path}\n" in server.output
    if shutil.which("curl"):
        command = server.output.partition("Try: ")[2].splitlines()[0]
        answer = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=20)
        assert answer.stdout.endswith("data: [DONE]\n\n"), (command, answer)
    host = {"Host": "any.example"}
    assert status_over(path, "POST", "/admin/drain", {**host, "X-Forwarded-For": "10.0.0.1"}) == 403
    assert status_over(path, "POST", "/admin/drain", host) == 202
    assert server.process.wait(20) == 0


@pytest.mark.parametrize("second", ["SIGTERM", "/admin/drain"])
def test_a_supervisor_may_drain_before_or_after_its_signal(start, second):
    server = start(SCRIPTED, grace=30).wait_until_ready()
    results, started = [], threading.Semaphore(0)
    thread = threading.Thread(target=stream, args=(server, 200, results, started))
    thread.start()
    assert started.acquire(timeout=30)
    end(server, "/admin/drain")
    end(server, second)
    thread.join(30)
    [(_, last)] = results
    assert last["choices"][0]["finish_reason"] == "length"
    assert server.process.wait(20) == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(start, second):
    server = start(SCRIPTED, grace=60).wait_until_ready()
    results, started = [], threading.Semaphore(0)
    thread = threading.Thread(target=stream, args=(server, 2000, results, started))
    thread.start()
    assert started.acquire(timeout=30)
    server.process.send_signal(signal.SIGTERM)
    wait_until_not_ready(server)
    begin = time.monotonic()
    server.process.send_signal(second)
    assert server.process.wait(20) == 0
    assert time.monotonic() - begin < 15  # of 20 that the stream would take
    thread.join(20)
    [(_, last)] = results
    assert last["error"]["code"] == "shutting_down"


def test_an_idle_server_ends_soon(start):
    server = start(SCRIPTED, grace=60).wait_until_ready()
    begin = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - begin < 30  # of 60


@pytest.mark.hardship
def test_a_reader_may_take_the_grace_for_what_has_been_generated(start):
    server = start(SCRIPTED, grace=60).wait_until_ready()
    body = {"prompt": "x", "max_tokens": 150, "seed": FLOOD, "stream": True}  # 10 MB, 1.5 seconds
    slow = open_request(server, body, receive_buffer=4096)
    assert slow.recv(10)
    server.process.terminate()
    time.sleep(LAST_WRITES + 3)  # which are over for the others
    received = read_all(slow)
    assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    slow.close()
    assert server.process.wait(60) == 0


def test_readers_that_have_stopped_do_not_delay_the_end(start):
    server = start(SCRIPTED, grace=2, send_timeout=600).wait_until_ready()
    body = {"prompt": "x", "max_tokens": 150, "seed": FLOOD, "stream": True}  # 10 MB, 1.5 seconds
    stalled = open_request(server, body, receive_buffer=4096)
    assert stalled.recv(10)
    begin = time.monotonic()
    assert server.stop() == 0
    assert 2 < time.monotonic() - begin < 60  # of 600
    stalled.close()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR2])
def test_what_would_load_a_second_model_is_refused_in_a_sentence(start, number):
    server = start(SCRIPTED).wait_until_ready()
    worker = worker_of(server)
    server.process.send_signal(number)
    os.kill(worker, number)
    deadline = time.monotonic() + 20
    while f"{number.name} is refused" not in server.output:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert server.post(URL, {"prompt": "x", "max_tokens": 1}).status_code == 200
    assert worker_of(server) == worker
    assert server.output.count("Booting worker") == 1
