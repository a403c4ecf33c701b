#!/usr/bin/env python3
"""Draws docs/pictures, which show the page, and the dashboard's panels for a server under load.

    scripts/test-page -k enter   # installs chromium and Playwright
    .venv/page/bin/python scripts/pictures.py [--prometheus PROGRAM] [--seconds 60]

Without --prometheus, the picture of the dashboard isn't changed. With it, a real Prometheus scrapes
the server and evaluates the queries in deploy/grafana/switchyard.json.
"""

import argparse
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import matplotlib
import requests

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402

from tests.live.conftest import GUNICORN, Server, free_port  # noqa: E402
from tests.page.conftest import launch, wait_until_begun  # noqa: E402

OUT = ROOT / "docs" / "pictures"
BOARD = ROOT / "deploy" / "grafana" / "switchyard.json"
VARIABLES = {"$__rate_interval": "10s", "$model": ".*", "$key": ".*"}
QUESTIONS = (
    "Hello! What can you do?",
    "Tell me a story about a fox.",
    "Write a list of five animals.",
)
ANSWER = """\
With the `openai` package:

```python
from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")
models = [model.id for model in client.models.list()]  # at least one
```

| setting | meaning |
|---|---|
| `base_url` | the address of **this** server |
| `api_key` | any text, unless there is a `keys_file` |
"""


@contextlib.contextmanager
def prometheus(program, server, directory):
    """Runs Prometheus, and yields its address."""
    port = free_port()
    config = directory / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\nscrape_configs:\n  - job_name: switchyard\n"
        f'    static_configs: [{{targets: ["127.0.0.1:{server.port}"]}}]\n'
    )
    process = subprocess.Popen(
        [
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


@contextlib.contextmanager
def traffic(server):
    """Sends waves of one to six requests at a time."""
    is_over = threading.Event()

    def ask(number):
        wave = 0
        while not is_over.wait(number if wave == 0 else 0.05):
            wave += 1
            body = {
                "messages": [{"role": "user", "content": QUESTIONS[wave % len(QUESTIONS)]}],
                "max_tokens": 24,
                "stream": wave % 2 == 0,
            }
            server.post("/v1/chat/completions", body)
            is_over.wait(number * (time.time() % 20 > 12))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def draw_board(url, seconds):
    """Draws every panel with lines from its own queries. Panels without values say so."""
    panels = [p for p in json.loads(BOARD.read_text())["panels"] if p["type"] == "timeseries"]
    rows = -(-len(panels) // 4)
    figure, axes = pyplot.subplots(rows, 4, figsize=(14, 2.1 * rows), layout="constrained")
    end = time.time()
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, panel in zip(axes.flat, panels, strict=False):
        axis.set_title(panel["title"], fontsize=9)
        axis.tick_params(labelsize=7)
        axis.set_xlim(-seconds, 0)
        for target in panel["targets"]:
            query = target["expr"]
            for name, value in VARIABLES.items():
                query = query.replace(name, value)
            span = {"query": query, "start": end - seconds, "end": end, "step": 1}
            answer = requests.get(f"{url}/api/v1/query_range", params=span, timeout=20).json()
            assert answer["status"] == "success", (query, answer)
            for series in answer["data"]["result"]:
                times, values = zip(*series["values"], strict=True)
                label = target.get("legendFormat", "")
                for name, value in series["metric"].items():
                    label = label.replace(f"{{{{{name}}}}}", value)
                axis.plot([t - end for t in times], [float(v) for v in values], label=label[:28])
        if axis.lines:
            axis.set_ylim(0, 1.4 * axis.get_ylim()[1])  # with room for the names
            axis.legend(fontsize=6, loc="upper left")
        else:
            axis.text(0.5, 0.5, "no data", transform=axis.transAxes, ha="center")
    figure.savefig(OUT / "board.png", dpi=66)


def ask(page, question):
    page.locator("#input").fill(question)
    page.locator("#input").press("Control+Enter")
    page.locator("#send:disabled").wait_for()
    page.locator("#send:enabled").wait_for()


def chat(page):
    """Shows one of the model's answers, and a hand-written answer with code and a table."""
    ask(page, QUESTIONS[1])
    ask(page, "How do I ask it from Python?")
    page.get_by_role("button", name="Edit").last.click()
    page.get_by_label("Text of the message").fill(ANSWER)
    page.get_by_role("button", name="Save").click()


def compare(page):
    page.get_by_role("button", name="Compare").click()
    page.locator(".pane").nth(1).get_by_role("button", name="Settings").click()
    page.get_by_text("Temperature", exact=True).click()
    page.get_by_label("temperature", exact=True).fill("1.5")
    page.get_by_role("button", name="Done").click()
    ask(page, QUESTIONS[1])


def settings(page):
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Preset").wait_for()
    page.get_by_text("Filters and mirostat").click()
    page.get_by_text("Filters and mirostat").scroll_into_view_if_needed()


VIEWS = {  # colours, width, height, and the steps before the picture
    "page": ("dark", 1280, 760, chat),
    "page-empty": ("light", 1000, 600, lambda page: None),
    "page-compare": ("light", 1280, 760, compare),
    "page-settings": ("light", 1000, 700, settings),
    "page-phone": ("light", 390, 700, chat),
}


def draw_page(url):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = launch(playwright)
        for name, (scheme, width, height, act) in VIEWS.items():
            page = browser.new_page(
                color_scheme=scheme, viewport={"width": width, "height": height}
            )
            page.goto(url)
            wait_until_begun(page)
            act(page)
            page.wait_for_timeout(1500)  # for the count of tokens and the state of the server
            page.screenshot(path=OUT / f"{name}.png")
            page.close()
        browser.close()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prometheus", metavar="PROGRAM", help="path of Prometheus")
    parser.add_argument("--seconds", type=int, default=60)
    args = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        server = Server(GUNICORN, directory, model=ROOT / "models" / "demo").wait_until_ready()
        try:
            draw_page(server.url)
            if args.prometheus:
                with prometheus(args.prometheus, server, directory) as url, traffic(server):
                    time.sleep(args.seconds)
                    draw_board(url, args.seconds)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
