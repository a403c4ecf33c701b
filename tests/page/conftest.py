"""Debian's chromium, which Playwright drives, and the applications whose pages it opens."""

import os
import sys

import pytest

from tests.conftest import ROOT
from tests.live.conftest import GUNICORN, Server, free_port
from tests.llamacpp.model import make

TIMEOUT = 60_000  # milliseconds that a page may take for what a test waits for


told = []


def pytest_terminal_summary(terminalreporter):
    for line in told:
        terminalreporter.write_line(line)


@pytest.fixture
def measured(request):
    """Takes the seconds until a job was cancelled, which the run's end tells."""
    return lambda seconds: told.append(f"{request.node.name}: {seconds:.2f} s")


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright  # scripts/test-page installs it

    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


def launch(playwright):
    """Without a sandbox, which a container's root has none of; the pages are our own."""
    return playwright.chromium.launch(
        executable_path="/usr/bin/chromium",
        args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
    )


@pytest.fixture
def page(browser):
    """A visitor's, who has no cookies. What a script fails at is an error of the test."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(TIMEOUT)
    faults = []
    page.on("pageerror", lambda fault: faults.append(fault))  # no method of a list will do
    yield page
    context.close()
    assert not faults


@pytest.fixture(scope="session")
def endless(tmp_path_factory):
    """Settings of a model whose answers go on until they are stopped, for half a minute or more."""
    path = tmp_path_factory.mktemp("models") / "endless"
    make(path)
    return {"model": path, "default_max_tokens": 7000}


@pytest.fixture(scope="session")
def switchyard(endless, tmp_path_factory):
    server = Server(GUNICORN, tmp_path_factory.mktemp("switchyard"), **endless)
    yield server.wait_until_ready()
    assert server.stop() == 0, server.output


@pytest.fixture(params=["own", "client mode"])
def helpdesk(request, endless, tmp_path):
    """examples/helpdesk with a model in its process, or four processes that ask a server."""
    port = free_port()
    command = [sys.executable, "-m", "gunicorn", "--pythonpath", "../..", "--threads", "8"]
    settings = endless
    if request.param == "client mode":
        server = request.getfixturevalue("switchyard")
        settings = {"url": server.url}
        command += ["--workers", "4"]
    command += ["--bind", f"127.0.0.1:{port}", "helpdesk:app"]
    os.environ["SECRET_KEY"] = "one for all processes"
    helpdesk = Server(command, tmp_path, port, cwd=ROOT / "examples" / "helpdesk", **settings)
    helpdesk.wait_until_answers("/login")
    yield helpdesk
    assert helpdesk.stop() == 0, helpdesk.output
