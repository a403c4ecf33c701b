#!/usr/bin/env python3
"""What CPU do viewers of the page cost, answers on it, and how long is its first paint?

    scripts/test-page -k enter   # installs chromium and Playwright
    .venv/page/bin/python benchmarks/page.py [--seconds 30] [--visits 10] [--beside URL]

The server has a backend without a model. `viewers`: CPU of its worker's process, less its CPU
without viewers. `answers`: CPU of the worker for a token of the answers to ten questions that one
page asks at once, each in its own conversation, beside a plain client that reads as many; in turn,
twice. Five answers come at once; the page says of the others that they wait. `first paint`: of a
browser with an empty cache, by its Performance API; with `--beside` in turn with another server's.
"""

import argparse
import gzip
import os
import pathlib
import selectors
import socket
import statistics
import sys
import tempfile
import threading
import time

import requests

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.report import header  # noqa: E402
from tests.faults.conftest import SCRIPTED, open_request, worker_of  # noqa: E402
from tests.live.conftest import Server  # noqa: E402
from tests.page.conftest import launch  # noqa: E402

QUESTIONS = 10
ANSWERS = 5  # a browser opens six connections to a server, and the page needs one
REQUEST = b"GET /ui/status HTTP/1.1\r\nHost: localhost\r\n\r\n"
PAINT = """() => new Promise((resolve) => new PerformanceObserver((list) => {
  for (const entry of list.getEntries())
    if (entry.name === "first-contentful-paint") resolve(entry.startTime);
}).observe({ type: "paint", buffered: true }))"""


def cpu_of(pid):
    """In seconds."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def watch(server, number, seconds):
    """The share of a core, and the frames a second that a viewer gets."""
    connections = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(number)]
    frames = 0
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            connection.sendall(REQUEST)
            selector.register(connection, selectors.EVENT_READ)
        time.sleep(2)
        begin, used = time.monotonic(), cpu_of(worker_of(server))
        while (left := begin + seconds - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                data = key.fileobj.recv(65536)
                assert data, "a viewer was left"
                frames += data.count(b"data: {")
        share = (cpu_of(worker_of(server)) - used) / (time.monotonic() - begin)
    for connection in connections:
        connection.close()
    return share, frames / seconds / max(number, 1)


def cost(server, seconds):
    """Microseconds of the worker's CPU for a token, and tokens a second."""

    def tokens():
        jobs = requests.get(f"{server.url}/v1/requests", timeout=30).json()["data"]
        assert len(jobs) == ANSWERS, f"{len(jobs)} answers"
        return sum(job["completion_tokens"] for job in jobs)

    begin, used, before = time.monotonic(), cpu_of(worker_of(server)), tokens()
    time.sleep(seconds)
    number = tokens() - before
    took = cpu_of(worker_of(server)) - used
    return 1e6 * took / number, number / (time.monotonic() - begin)


def read_by_page(server, browser, seconds):
    page = browser.new_page()
    page.goto(server.url)
    for i in range(QUESTIONS):
        page.keyboard.press("Control+Shift+O")
        page.get_by_role("textbox", name="Message").fill(f"Question {i}")
        page.keyboard.press("Enter")
        page.wait_for_function("() => !document.getElementById('stop').disabled")
    page.get_by_text(f"Waits: {ANSWERS} answers are on their way").wait_for()
    found = cost(server, seconds)
    page.close()
    return found


def read_by_client(server, seconds):
    body = {
        "messages": [{"role": "user", "content": "Question"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connections = [open_request(server, body, "/v1/chat/completions") for _ in range(ANSWERS)]
    stops = threading.Event()

    def read(connection):
        while not stops.is_set() and connection.recv(65536):
            pass

    threads = [threading.Thread(target=read, args=(one,)) for one in connections]
    for thread in threads:
        thread.start()
    time.sleep(2)
    found = cost(server, seconds)
    stops.set()
    for thread, connection in zip(threads, connections, strict=True):
        thread.join()
        connection.close()
    return found


def wait_until_idle(server):
    while requests.get(f"{server.url}/v1/requests", timeout=30).json()["data"]:
        time.sleep(0.2)


def compare(server, browser, seconds):
    for _ in range(2):
        for name, read in (
            ("a page", lambda: read_by_page(server, browser, seconds)),
            ("a client", lambda: read_by_client(server, seconds)),
        ):
            wait_until_idle(server)
            taken, rate = read()
            print(
                f"{ANSWERS} answers read by {name:8} {taken:6.1f} us a token, {rate:6.0f} tokens/s"
            )


def paint(browser, url):
    """Milliseconds until the first contentful paint."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(url)
    found = page.evaluate(PAINT)
    context.close()
    return found


def main():
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--visits", type=int, default=10)
    parser.add_argument("--beside", help="the address of another version's page")
    args = parser.parse_args()
    header()
    for kind in ("js", "css", "html"):
        files = [file.read_bytes() for file in (ROOT / "app" / "ui").glob(f"*.{kind}")]
        raw, packed = sum(map(len, files)), sum(len(gzip.compress(file)) for file in files)
        print(f"{len(files):2d} {kind:4} {raw:6d} bytes, {packed:6d} by gzip")
    with tempfile.TemporaryDirectory() as directory:
        settings = {"model": ROOT / "models" / "demo", "max_viewers": 128}
        server = Server(SCRIPTED, pathlib.Path(directory), **settings).wait_until_ready()
        try:
            alone, _ = watch(server, 0, args.seconds)
            print(f"no viewer   {alone:7.3%} of a core")
            for number in (1, 100):
                share, rate = watch(server, number, args.seconds)
                print(f"viewers {number:3d} {share - alone:7.3%} more, {rate:.2f} frames/s each")
            with sync_playwright() as playwright:
                browser = launch(playwright)
                compare(server, browser, args.seconds)
                urls = [server.url, *([args.beside] if args.beside else [])]
                visits = [[paint(browser, url) for url in urls] for _ in range(args.visits)]
                browser.close()
        finally:
            server.stop()
    loads = " ".join(f"{load:.1f}" for load in os.getloadavg())
    for name, found in zip(
        ("here", "beside"), map(sorted, zip(*visits, strict=True)), strict=False
    ):
        print(
            f"first paint {name:6} {statistics.median(found):.0f} ms, {found[0]:.0f} to"
            f" {found[-1]:.0f}, of {len(found)} visits; load {loads}"
        )


if __name__ == "__main__":
    main()
