#!/usr/bin/env python3
"""What CPU do one and a hundred viewers of the page cost, and how long is its first paint?

    scripts/test-page -k enter   # installs chromium and Playwright
    .venv/page/bin/python benchmarks/page.py [--seconds 30] [--visits 10]

The server has a backend without a model. `viewers`: CPU of its worker's process, less its CPU
without viewers. `first paint`: of a browser with an empty cache, by its Performance API.
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
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.report import header  # noqa: E402
from tests.faults.conftest import SCRIPTED, worker_of  # noqa: E402
from tests.live.conftest import Server  # noqa: E402
from tests.page.conftest import launch  # noqa: E402

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


def paints(url, number):
    """Milliseconds until the first contentful paint."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = launch(playwright)
        for _ in range(number):
            context = browser.new_context()
            page = context.new_page()
            page.goto(url)
            yield page.evaluate(PAINT)
            context.close()
        browser.close()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--visits", type=int, default=10)
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
            found = sorted(paints(server.url, args.visits))
        finally:
            server.stop()
    loads = " ".join(f"{load:.1f}" for load in os.getloadavg())
    print(
        f"first paint {statistics.median(found):.0f} ms, {found[0]:.0f} to {found[-1]:.0f},"
        f" of {len(found)} visits; load {loads}"
    )


if __name__ == "__main__":
    main()
