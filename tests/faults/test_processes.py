"""What becomes of a server whose worker dies, or whose engine is lost with it."""

import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import requests

from tests.faults.conftest import SCRIPTED, worker_of
from tests.faults.paced import HANG, LOSE_DEVICE
from tests.live.conftest import ROOT

URL = "/v1/completions"


def wait_for_another(server, worker):
    """Until another worker than that serves."""
    deadline = time.monotonic() + 60
    while True:
        assert time.monotonic() < deadline, server.output
        try:
            if worker_of(server) != worker:
                break
        except ValueError:  # none at the moment
            pass
        time.sleep(0.05)
    server.wait_until_ready()
    assert server.post(URL, {"prompt": "x", "max_tokens": 3}).status_code == 200


def test_a_killed_worker_is_replaced(start):
    server = start(SCRIPTED).wait_until_ready()
    worker = worker_of(server)
    response = server.post(URL, {"prompt": "x", "max_tokens": 2000, "stream": True}, stream=True)
    next(response.iter_content(None))
    os.kill(worker, signal.SIGKILL)
    response.close()
    wait_for_another(server, worker)
    assert server.stop() == 0


def test_a_worker_that_stands_still_is_replaced(start):
    """gunicorn's main thread in the worker tells the master that it lives."""
    server = start([*SCRIPTED, "--timeout", "10"]).wait_until_ready()
    worker = worker_of(server)
    os.kill(worker, signal.SIGSTOP)
    wait_for_another(server, worker)
    assert server.stop() == 0


def test_a_worker_whose_engine_is_lost_ends_its_streams_and_is_replaced(start):
    server = start(SCRIPTED, link="thread").wait_until_ready()
    worker = worker_of(server)
    body = {"prompt": "x", "max_tokens": 50, "seed": LOSE_DEVICE, "stream": True}
    with server.post(URL, body, stream=True) as response:
        frames = [line[6:] for line in response.iter_lines() if line.startswith(b"data: ")]
    assert frames[-1] == b"[DONE]"
    assert "the device is lost" in json.loads(frames[-2])["error"]["message"]
    wait_for_another(server, worker)
    assert server.stop() == 0


def test_no_request_is_cut_off_by_the_end_of_a_worker(start):
    """Whose engine is lost: all that come meanwhile are answered by it, or by the next one."""
    server = start(SCRIPTED, link="thread").wait_until_ready()
    worker = worker_of(server)
    is_over = threading.Event()

    def ask_again_and_again():
        num_answers = 0
        while not is_over.is_set():
            response = requests.post(f"{server.url}{URL}", json={"prompt": "x"}, timeout=60)
            assert response.json()
            num_answers += 1
        return num_answers

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        clients = [pool.submit(ask_again_and_again) for _ in range(8)]
        try:
            server.post(URL, {"prompt": "x", "max_tokens": 50, "seed": LOSE_DEVICE})
            wait_for_another(server, worker)
        finally:
            is_over.set()
        assert all(client.result() > 1 for client in clients)
    assert server.stop() == 0


def test_a_worker_whose_step_hangs_answers_and_is_replaced(start):
    server = start(SCRIPTED, link="thread", hang_timeout=2, hang_exit=12).wait_until_ready()
    worker = worker_of(server)
    response = server.post(URL, {"prompt": "x", "max_tokens": 50, "seed": HANG})
    assert response.status_code >= 500
    ready = requests.get(f"{server.url}/health/ready", timeout=10)
    assert ready.status_code == 503
    assert ready.json()["models"] == {"tiny": "hanging"}
    assert server.post(URL, {"prompt": "x"}).status_code == 503
    wait_for_another(server, worker)
    assert server.stop() == 0


def test_a_panic_on_a_request_thread_is_that_requests_alone(start):
    conf = str(ROOT / "tests" / "faults" / "panic_conf.py")
    server = start([*SCRIPTED[:-1], conf]).wait_until_ready()
    worker = worker_of(server)
    body = {"prompt": "x", "max_tokens": 200, "stream": True}
    with server.post(URL, body, stream=True) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert requests.get(f"{server.url}/panic", timeout=60).status_code == 500
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            requests.get(f"{server.url}/panic/later", timeout=60)
        assert b"data: [DONE]" in list(lines)
    assert "Panic: at once" in server.output and "Panic: later" in server.output
    assert worker_of(server) == worker
    assert server.stop() == 0


def test_a_worker_is_given_more_time_than_a_step_that_hangs(model_path, tmp_path):
    settings = {"SWITCHYARD_MODEL": model_path, "SWITCHYARD_HANG_EXIT": "300"}
    code = "from switchyard.server import conf; print(conf.timeout)"
    command = [sys.executable, "-c", code]
    environment = {**os.environ, **settings, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert int(result.stdout.splitlines()[-1]) > 300, result.stderr


@pytest.mark.hardship
def test_a_pause_of_the_whole_server_costs_no_worker(start):
    """As of a container: longer than the master waits for a sign of the worker."""
    server = start([*SCRIPTED, "--timeout", "5"]).wait_until_ready()
    worker = worker_of(server)
    body = {"prompt": "x", "max_tokens": 300, "stream": True}
    with server.post(URL, body, stream=True) as stream:
        lines = stream.iter_lines()
        next(lines)
        for process in (worker, server.process.pid):
            os.kill(process, signal.SIGSTOP)
        time.sleep(7)
        server.process.send_signal(signal.SIGCONT)
        time.sleep(0.3)  # the master looks before the worker can tell that it lives
        os.kill(worker, signal.SIGCONT)
        assert b"data: [DONE]" in list(lines)
    assert worker_of(server) == worker
    assert server.stop() == 0
