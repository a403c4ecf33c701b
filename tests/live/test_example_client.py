"""examples/helpdesk with four processes, and one server behind them."""

import sys
import time

import pytest
import requests

from tests.faults.conftest import SCRIPTED
from tests.live.conftest import ROOT, Server, free_port

STORY = {"question": "Count from 1 to 2000."}


@pytest.fixture(scope="module")
def helpdesk(tmp_path_factory):
    """Four processes, and where their server will be. No test leaves anything in them."""
    address, port = free_port(), free_port()
    command = [sys.executable, "-m", "gunicorn", "--pythonpath", "../..", "--workers", "4"]
    command += ["--threads", "8", "--bind", f"127.0.0.1:{port}", "helpdesk:app"]
    cwd = ROOT / "examples" / "helpdesk"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECRET_KEY", "of all processes")
        url = f"http://127.0.0.1:{address}"
        helpdesk = Server(command, tmp_path_factory.mktemp("helpdesk"), port, cwd=cwd, url=url)
    helpdesk.wait_until_answers("/login").asks = address
    yield helpdesk
    assert helpdesk.stop() == 0, helpdesk.output


@pytest.fixture
def server(start, helpdesk):
    settings = {"port": helpdesk.asks, "default_max_tokens": 1500, "grace": 0}
    return start(SCRIPTED, **settings).wait_until_ready()


def log_in(helpdesk):
    session = requests.Session()
    session.post(f"{helpdesk.url}/login", data={"user": "Ada", "password": "demo"}, timeout=20)
    return session


def ask(helpdesk, user, **more):
    more = {"data": STORY, "timeout": 60, "headers": {"Accept": "text/plain"}, **more}
    return user.post(f"{helpdesk.url}/ask", **more)


def running(server):
    return requests.get(f"{server.url}/v1/requests", timeout=20).json()["data"]


def test_who_leaves_is_cancelled_on_the_server(helpdesk, server):
    for _ in range(8):  # of whichever process
        with log_in(helpdesk) as user:
            answer = ask(helpdesk, user, stream=True)
            assert next(answer.iter_content(8)) and len(running(server)) == 1
            answer.close()
        deadline = time.monotonic() + 20
        while running(server):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_server_that_starts_anew_costs_an_error_and_no_more(helpdesk, server, start):
    with log_in(helpdesk) as user:
        answer = ask(helpdesk, user, stream=True)
        pieces = answer.iter_content(8)
        assert next(pieces)
        server.stop()
        with pytest.raises(requests.RequestException):
            list(pieces)
        refused = ask(helpdesk, user)
        assert (refused.status_code, "can't be reached" in refused.text) == (503, True)
        start(port=server.port).wait_until_ready()
        assert user.post(f"{helpdesk.url}/title", data=STORY, timeout=60).status_code == 200
