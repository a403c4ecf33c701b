"""Debian's chromium, which Playwright drives, and the applications whose pages it opens."""

import os
import sys
import time

import pytest
import requests
import werkzeug.serving

from tests.app.client_mode.conftest import QuietHandler, listen
from tests.app.conftest import make_client, way
from tests.conftest import ROOT, wait_for
from tests.live.conftest import GUNICORN, Server, free_port
from tests.llamacpp.model import make

__all__ = ["listen", "make_client", "way"]

TIMEOUT = 60_000  # milliseconds that a page may take for what a test waits for
SIZES = {1440: 900, 820: 1100, 390: 800}  # windows, in pixels
DRAINING = 4.0  # seconds, and less than chromium reads on for behind an answer that was given up

told = []


def pytest_terminal_summary(terminalreporter):
    for line in told:
        terminalreporter.write_line(line)


@pytest.fixture
def measured(request):
    """Takes the seconds until a job was cancelled, which the run's end tells."""
    return lambda seconds: told.append(f"{request.node.name}: {seconds:.2f} s")


class Jobs:
    """Jobs of the server, or of the application's own process, as its visitor may see them."""

    def __init__(self, url, session=None):
        self._session = session or requests.Session()
        self._url = url

    def now(self):
        answer = self._session.get(f"{self._url}/v1/requests", timeout=30)
        return answer.json()["data"]

    def wait_until_ahead(self):
        """Wait until the server is ahead of what a slow line has brought to the page."""
        wait_for(lambda: self.now()[0]["completion_tokens"] > 500)

    def cancelled(self):
        lines = self._session.get(f"{self._url}/metrics", timeout=30).text.splitlines()
        counts = [line for line in lines if 'finished_reason="abort"' in line]
        return sum(float(x.split()[-1]) for x in counts if "request_success_total" in x)

    def seconds_until_cancelled(self, before, at_most=30):
        begin = time.monotonic()
        wait_for(lambda: not self.now() and self.cancelled() == before + 1, at_most)
        return time.monotonic() - begin


def slow_down(page):
    """Its line, for what it asks from now on. Then chromium holds something that it has not passed
    on to the page; and of an answer that is given up it reads the rest, for 5 seconds at most, if
    the connection may be used again. At 500 bytes a second, an answer's head takes one second: a
    quick machine would end the job in the time of a slower line.
    """
    conditions = {"offline": False, "latency": 0, "downloadThroughput": 500, "uploadThroughput": -1}
    line = page.context.new_cdp_session(page)
    line.send("Network.emulateNetworkConditions", conditions)


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
def width():
    return 1440


@pytest.fixture
def page(browser, width):
    """A visitor's, who has no cookies. What a script fails at is an error of the test."""
    context = browser.new_context(viewport={"width": width, "height": SIZES.get(width, 700)})
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
    command += ["--keep-alive", "0"]
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


@pytest.fixture
def serve(make_client, listen):
    """Serve an application over a backend; returns its client, with the address as `url`."""

    def make(backend, **settings):
        client = make_client(backend, **settings)
        server = werkzeug.serving.make_server(
            "127.0.0.1", 0, client.application, threaded=True, request_handler=QuietHandler
        )
        server.daemon_threads = False  # its end joins them
        client.url = f"http://127.0.0.1:{listen(server).port}/"
        return client

    return make


@pytest.fixture
def complaints(page):
    """What the browser has on its console: errors, and what its policy has forbidden."""
    found = []

    def note(message):
        if message.type == "error" and "Failed to load resource" not in message.text:
            found.append(message.text)

    page.on("console", note)
    yield found
    assert found == []


@pytest.fixture
def visit(page, serve, complaints):
    """Serve a backend, and open its page."""

    def make(backend, **settings):
        client = serve(backend, **settings)
        page.goto(client.url)
        wait_until_begun(page)
        return client

    yield make
    page.goto("about:blank")  # which ends its streams


def wait_until_begun(page):
    page.locator("#ask-label:not(:empty)").wait_for()


def reload(page):
    page.reload()
    wait_until_begun(page)


def say(page, text):
    wait_until_begun(page)
    close_list(page)
    page.locator("#input").fill(text)
    page.locator("#input").press("Control+Enter")


def chat(page, text):
    """Say it, and have the whole answer."""
    say(page, text)
    return complete(page)


def begin(page):
    """A new conversation."""
    page.keyboard.press("Control+Shift+O")


def answer(page, pane=0):
    """The latest."""
    return page.locator(".pane").nth(pane).locator("article.assistant").last


def complete(page, pane=0):
    shown = answer(page, pane)
    shown.locator(".note:visible").last.wait_for()
    page.locator(".pane").nth(pane).locator("article[aria-busy]").last.wait_for(state="detached")
    return shown


def text_of(shown):
    """The text of the answer or question itself, without its buttons."""
    return shown.locator(".body > .text").text_content()


def open_list(page):
    """The list of conversations, where it is a drawer."""
    wait_until_begun(page)
    if page.locator("#menu").is_visible() and not page.locator("body.drawer").count():
        page.locator("#menu").click()


def close_list(page):
    """As far as it is a drawer."""
    if page.locator("body.drawer").count():
        page.keyboard.press("Escape")


def titles(page):
    return page.locator("#list .title").all_text_contents()
