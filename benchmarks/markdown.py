#!/usr/bin/env python3
"""How long does the page's Markdown block a browser, and does its time grow with the text alone?

    scripts/test-page -k narrow   # installs chromium and Playwright
    .venv/page/bin/python benchmarks/markdown.py [--tokens 20000] [--rate 200] [--growth]

An answer of each kind is written, four characters a token, into an element that is scrolled to its
end after each. Of its last thousand tokens, written at a rate, the browser's tasks are traced: what
the longest takes of CPU time, and of time, which other processes on the machine share.
`--growth`: CPU time of hostile texts of a length, and of twice that length.
"""

import argparse
import json
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.report import header  # noqa: E402
from tests.page.conftest import launch  # noqa: E402
from tests.page.test_markdown import LARGE  # noqa: E402

PROSE = (
    "Some *words* of an answer, **more** of them with `code` and a [link](https://a.bc), "
    "and nothing else than that.\n"
)
KINDS = {
    "answer": "## A heading\n\n"
    + PROSE * 4
    + "\n- an item\n- another **item**\n  - within it\n\n"
    + "```python\ndef f(x):\n    return x + 1  # one more\n```\n\n"
    + "| a | b |\n|---|--:|\n| 1 | 2 |\n| 3 | 4 |\n\n> a quote\n\n",
    "one paragraph": PROSE,
    "one line": PROSE.replace("\n", " "),
    "code": "    if (x[1] === 'text') { f(x, 1.5); } // what it is\n",
    "table": "| a cell | **another** | `code` | 1.25 |\n",
    "list": "1. an *item* of a list\n   - with another **item**\n\n     and its paragraph\n",
    "quote": "> some *words* of a quote\n>\n",
}
MEASURED = 1000  # tokens
BEGIN = {"code": "```js\n", "table": "| a | b | c | d |\n|---|---|---|---|\n"}
STREAM = """async ([text, rate]) => {
  const { Markdown } = await import("/ui/markdown.js");
  const scroller = document.querySelector("main");
  if (!self.markdown) {
    scroller.append(document.createElement("article"));
    scroller.firstChild.className = "markdown";
    self.markdown = new Markdown(scroller.firstChild);
  }
  const begin = performance.now();
  for (let at = 0, piece = 0; at < text.length; at += 4) {
    const delay = Math.max(begin + (piece++ * 1000) / rate - performance.now(), 0);
    await scheduler.postTask(() => {}, { delay }); // each piece is a task of its own
    self.markdown.write(text.slice(at, at + 4));
    scroller.scrollTop = scroller.scrollHeight;
  }
  return document.querySelectorAll("article *").length;
}"""
GROW = """async ([text, size]) => {
  const { Markdown } = await import("/ui/markdown.js");
  const markdown = new Markdown(document.createElement("div"));
  for (let at = 0; at < text.length; at += size) markdown.write(text.slice(at, at + size));
  markdown.end();
}"""


def open_page(browser):
    def answer(route):
        path = route.request.url.removeprefix("http://localhost")
        if path == "/":
            names = ("style.css", "markdown.css")
            styles = "".join(f'<link rel="stylesheet" href="/ui/{name}">' for name in names)
            body = f"<!doctype html>{styles}<main class='log'></main>"
            return route.fulfill(body=body, content_type="text/html")
        kind = "text/css" if path.endswith(".css") else "text/javascript"
        return route.fulfill(body=(ROOT / "app" / path.lstrip("/")).read_text(), content_type=kind)

    page = browser.new_page(viewport={"width": 1000, "height": 800})
    page.route("**/*", answer)
    page.goto("http://localhost/")
    page.add_style_tag(content="main { height: 700px; overflow: auto; }")
    return page


def resident(browser):
    """MiB that the processes of the browser's pages hold."""
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    pids = [one["id"] for one in processes if one["type"] == "renderer"]
    lines = [pathlib.Path(f"/proc/{pid}/statm").read_text() for pid in pids]
    return sum(int(line.split()[1]) for line in lines) * os.sysconf("SC_PAGE_SIZE") / 2**20


def tasks(trace):
    """CPU and wall milliseconds of the tasks of the pages' main threads."""
    events = json.loads(trace)["traceEvents"]
    threads = {
        (one["pid"], one["tid"])
        for one in events
        if one["name"] == "thread_name" and one["args"]["name"] == "CrRendererMain"
    }
    for one in events:
        if one["name"] == "RunTask" and one["ph"] == "X" and (one["pid"], one["tid"]) in threads:
            yield one.get("tdur", 0) / 1000, one["dur"] / 1000


def stream(browser, kind, tokens, rate):
    page = open_page(browser)
    client = page.context.new_cdp_session(page)
    client.send("HeapProfiler.collectGarbage")
    before = resident(browser)
    text = KINDS[kind] * (4 * tokens // len(KINDS[kind]) + 1)
    text = (BEGIN.get(kind, "") + text)[: 4 * tokens]
    page.evaluate(STREAM, [text[: -4 * MEASURED], 1e9])
    client.send("HeapProfiler.collectGarbage")
    browser.start_tracing(page=page, categories=["disabled-by-default-devtools.timeline"])
    elements = page.evaluate(STREAM, [text[-4 * MEASURED :], rate])
    used, lasted = zip(*tasks(browser.stop_tracing()), strict=True)
    client.send("HeapProfiler.collectGarbage")
    print(
        f"{kind:14} longest task {max(used):5.1f} ms of CPU, {max(lasted):4.0f} ms of time;"
        f" {sum(used) / MEASURED:.2f} ms of CPU a token;"
        f" memory +{resident(browser) - before:.0f} MiB, {elements} elements",
        flush=True,
    )
    page.close()


def grow(browser, length, size):
    page = open_page(browser)
    client = page.context.new_cdp_session(page)
    client.send("Performance.enable", {"timeDomain": "threadTicks"})

    def used():
        metrics = client.send("Performance.getMetrics")["metrics"]
        return next(one["value"] for one in metrics if one["name"] == "ThreadTime")

    def cpu(text):
        """Milliseconds of the page's main thread."""
        client.send("HeapProfiler.collectGarbage")
        before = used()
        page.evaluate(GROW, [text, size])
        return (used() - before) * 1000

    for family, (before, repeated, after) in LARGE.items():
        texts = [before + repeated * (n // len(repeated)) + after for n in (length, 2 * length)]
        cpu(texts[0])  # compiles what is hot
        once, twice = (min(cpu(text) for _ in range(3)) for text in texts)
        print(f"{family:14} {once:7.1f} ms, twice {twice:7.1f}: {twice / once:5.2f}", flush=True)
    page.close()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=200, help="tokens per second")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--length", type=int, default=100_000, help="characters, of --growth")
    parser.add_argument("--piece", type=int, default=1000, help="characters, of --growth")
    args = parser.parse_args()
    from playwright.sync_api import sync_playwright

    header()
    with sync_playwright() as playwright:
        browser = launch(playwright)
        if args.growth:
            grow(browser, args.length, args.piece)
        else:
            for kind in args.kinds.split(","):
                stream(browser, kind, args.tokens, args.rate)
        browser.close()
    print(f"# load {' '.join(f'{load:.1f}' for load in os.getloadavg())}")


if __name__ == "__main__":
    main()
