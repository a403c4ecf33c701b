"""examples/helpdesk with four processes, and one server behind them."""

import os
import re
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from tests.faults.conftest import SCRIPTED, worker_of
from tests.faults.paced import ENDLESS
from tests.live.conftest import ROOT, Server, free_port
from tests.live.helpdesk import User

STORY = {"question": "Count from 1 to 2000."}


@pytest.fixture(scope="module")
def helpdesk(tmp_path_factory):
    """Four processes, and where their server will be. No test leaves anything in them."""
    address, port = free_port(), free_port()
    command = [sys.executable, "-m", "gunicorn", "--pythonpath", "../..", "--workers", "4"]
    command += ["--threads", "16", "--keep-alive", "0", "--bind", f"127.0.0.1:{port}"]
    command += ["--access-logfile", "-", "--access-logformat", "%(p)s %(U)s %(s)s", "helpdesk:app"]
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
    settings = {"port": helpdesk.asks, "default_max_tokens": ENDLESS, "grace": 0}
    return start(SCRIPTED, **settings).wait_until_ready()


def ask(helpdesk, user, **more):
    more = {"data": STORY, "timeout": 60, "headers": {"Accept": "text/plain"}, **more}
    return user.post(f"{helpdesk.url}/ask", **more)


def test_who_leaves_is_cancelled_on_the_server(helpdesk, server):
    for _ in range(8):  # of whichever process
        with User(helpdesk.url) as user:
            answer = ask(helpdesk, user, stream=True)
            assert next(answer.iter_content(8)) and len(server.rows()) == 1
            answer.close()
        server.wait_for(lambda: not server.rows(), 20)


def test_a_server_that_starts_anew_costs_an_error_and_no_more(helpdesk, server, start):
    with User(helpdesk.url) as user:
        answer = ask(helpdesk, user, stream=True)
        pieces = answer.iter_content(8)
        assert next(pieces)
        server.stop()
        with pytest.raises(requests.RequestException):
            list(pieces)
        refused = ask(helpdesk, user)
        assert (refused.status_code, "Please try again" in refused.text) == (503, True)
        start(port=server.port).wait_until_ready()
        assert user.post(f"{helpdesk.url}/title", data=STORY, timeout=60).status_code == 200


def workers_of(helpdesk, line):
    """That have answered so, by their access log."""
    return set(re.findall(rf"^(<\d+>) {line}", helpdesk.output, re.MULTILINE))


def read_until_it_breaks(helpdesk, user, has_begun):
    with ask(helpdesk, user, stream=True) as answer:
        pieces = answer.iter_content(8)
        assert next(pieces)
        has_begun.release()
        with pytest.raises(requests.RequestException):
            list(pieces)
        return time.monotonic()


def test_a_server_s_worker_that_is_killed_ends_all_reads_and_each_process_goes_on(helpdesk, server):
    has_begun = threading.Semaphore(0)
    with User(helpdesk.url) as user, ThreadPoolExecutor(16) as pool:
        arguments = read_until_it_breaks, helpdesk, user, has_begun
        reads = [pool.submit(*arguments) for _ in range(16)]
        begun = [has_begun.acquire(timeout=60) for _ in reads]
        os.kill(worker_of(server), signal.SIGKILL)
        killed = time.monotonic()
        assert all(begun)
        assert max(read.result(timeout=60) for read in reads) - killed < 10

        def has_asked_all():
            user.post(f"{helpdesk.url}/title", data=STORY, timeout=60)
            return len(workers_of(helpdesk, "/title 200")) == 4

        helpdesk.wait_for(has_asked_all)
