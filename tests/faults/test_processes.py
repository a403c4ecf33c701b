"""What becomes of a server whose worker dies, or whose engine is lost with it."""

import concurrent.futures
import contextlib
import json
import os
import signal
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

    def is_there():
        with contextlib.suppress(ValueError):  # none at the moment
            return worker_of(server) != worker

    server.wait_for(is_there)
    server.wait_until_ready()
    assert server.post(URL, {"prompt": "x", "max_tokens": 3}).status_code == 200


def test_a_worker_that_stands_still_is_replaced(start):
    """gunicorn's main thread in the worker tells the master that it lives."""
    server = start([*SCRIPTED, "--timeout", "7"]).wait_until_ready()
    worker = worker_of(server)
    os.kill(worker, signal.SIGSTOP)
    wait_for_another(server, worker)
    assert server.stop() == 0


def test_a_worker_whose_engine_is_lost_ends_its_streams_and_cuts_off_no_request(start):
    """All that come meanwhile are answered by it, or by the next one."""
    server = start(SCRIPTED, link="thread").wait_until_ready()
    worker = worker_of(server)
    is_over = threading.Event()

    def ask_again_and_again():
        num_answers = 0
        while not is_over.is_set():
            assert server.post(URL, {"prompt": "x"}).json()
            num_answers += 1
        return num_answers

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        clients = [pool.submit(ask_again_and_again) for _ in range(8)]
        try:
            *_, body, done = server.begin(max_tokens=50, seed=LOSE_DEVICE)
            wait_for_another(server, worker)
        finally:
            is_over.set()
        assert all(client.result() > 1 for client in clients)
    assert "the device is lost" in json.loads(body)["error"]["message"] and done == b"[DONE]"
    assert server.stop() == 0


def test_a_worker_whose_step_hangs_answers_and_is_replaced(start):
    server = start(SCRIPTED, link="thread", hang_timeout=2, hang_exit=6).wait_until_ready()
    worker = worker_of(server)
    response = server.post(URL, {"prompt": "x", "max_tokens": 50, "seed": HANG})
    assert response.status_code >= 500
    ready = server.get("/health/ready")
    assert (ready.status_code, ready.json()["models"]) == (503, {"tiny": "hanging"})
    assert server.post(URL, {"prompt": "x"}).status_code == 503
    wait_for_another(server, worker)
    assert server.stop() == 0


def test_a_panic_on_a_request_thread_is_that_requests_alone(start):
    conf = str(ROOT / "tests" / "faults" / "panic_conf.py")
    server = start([*SCRIPTED[:-1], conf]).wait_until_ready()
    worker = worker_of(server)
    stream = server.begin(max_tokens=100)
    assert server.get("/panic").status_code == 500
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        server.get("/panic/later")
    assert b"[DONE]" in list(stream)
    assert "Panic: at once" in server.output and "Panic: later" in server.output
    assert worker_of(server) == worker
    assert int(server.get("/threshold").text) >= 50_000  # a body has very many values at most
    assert server.stop() == 0


@pytest.mark.hardship
def test_a_pause_of_the_whole_server_costs_no_worker(start):
    """As of a container: longer than the master waits for a sign of the worker."""
    server = start([*SCRIPTED, "--timeout", "5"]).wait_until_ready()
    worker = worker_of(server)
    stream = server.begin(max_tokens=300)
    for process in (worker, server.process.pid):
        os.kill(process, signal.SIGSTOP)
    time.sleep(7)
    server.process.send_signal(signal.SIGCONT)
    time.sleep(0.3)  # the master looks before the worker can tell that it lives
    os.kill(worker, signal.SIGCONT)
    assert b"[DONE]" in list(stream)
    assert worker_of(server) == worker
    assert server.stop() == 0
