"""examples/helpdesk with four processes, and one server behind them."""

import sys
import time

import pytest
import requests

from tests.live.conftest import GUNICORN, ROOT, Server, free_port

STORY = {"question": "Count from 1 to 2000."}


@pytest.fixture
def start_helpdesk(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "of all processes")
    servers = []

    def make(url):
        port = free_port()
        command = [sys.executable, "-m", "gunicorn", "--pythonpath", "../..", "--workers", "4"]
        command += ["--threads", "8", "--bind", f"127.0.0.1:{port}", "helpdesk:app"]
        cwd = ROOT / "examples" / "helpdesk"
        servers.append(Server(command, tmp_path, port, cwd=cwd, url=url))
        servers[-1].wait_until_answers("/login")
        return servers[-1]

    yield make
    for server in servers:
        assert server.stop() == 0, server.output


@pytest.fixture
def both(start, start_helpdesk):
    """The helpdesk and the server, once that is ready."""
    server = start(GUNICORN, default_max_tokens=1500, grace=0).wait_until_ready()
    return start_helpdesk(server.url), server


def log_in(helpdesk):
    session = requests.Session()
    session.post(f"{helpdesk.url}/login", data={"user": "Ada", "password": "demo"}, timeout=20)
    return session


def ask(helpdesk, user, **more):
    more = {"data": STORY, "timeout": 60, "headers": {"Accept": "text/plain"}, **more}
    return user.post(f"{helpdesk.url}/ask", **more)


def running(server):
    return requests.get(f"{server.url}/v1/requests", timeout=20).json()["data"]


def test_who_leaves_is_cancelled_on_the_server(both):
    helpdesk, server = both
    for _ in range(8):  # of whichever process
        with log_in(helpdesk) as user:
            answer = ask(helpdesk, user, stream=True)
            assert next(answer.iter_content(8)) and len(running(server)) == 1
            answer.close()
        deadline = time.monotonic() + 20
        while running(server):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_server_that_starts_anew_costs_an_error_and_no_more(both, tmp_path, model_path):
    helpdesk, server = both
    with log_in(helpdesk) as user:
        answer = ask(helpdesk, user, stream=True)
        pieces = answer.iter_content(8)
        assert next(pieces)
        server.stop()
        with pytest.raises(requests.RequestException):
            list(pieces)
        refused = ask(helpdesk, user)
        assert (refused.status_code, "can't be reached" in refused.text) == (503, True)
        again = Server(GUNICORN, tmp_path, server.port, model=model_path)
        try:
            again.wait_until_ready()
            assert user.post(f"{helpdesk.url}/title", data=STORY, timeout=60).status_code == 200
        finally:
            again.stop()
