"""The end of a host application under its own gunicorn."""

import threading
import time

import requests

from tests.live.conftest import GUNICORN

HOST = [*GUNICORN[:3], "--threads", "4", "--graceful-timeout", "40", "--bind", "127.0.0.1:{port}"]


def test_sigterm_during_a_load_ends_it_at_once(start, tmp_path):
    server = start([*HOST, "tests.live.loading_host:app"]).wait_until_answers("/")
    answers = []
    url = f"{server.url}/text"
    thread = threading.Thread(target=lambda: answers.append(requests.get(url, timeout=60)))
    thread.start()
    deadline = time.monotonic() + 20
    while "loads" not in server.output:
        assert time.monotonic() < deadline, server.output
        time.sleep(0.05)
    begin = time.monotonic()
    assert server.stop() == 0, server.output
    thread.join(20)
    assert time.monotonic() - begin < 20  # of the 40 that requests may take, and the load's 60
    assert answers[0].status_code == 500
    assert "the server is shutting down" in server.output
