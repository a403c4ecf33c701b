#!/usr/bin/env python3
"""For how long does a hard answer freeze the page, as it comes and as it is shown again?

    scripts/test-page -k enter   # installs chromium and Playwright
    .venv/page/bin/python benchmarks/freezes.py [--visits 3] [CASE...]

The browser gets each answer as quickly as it reads. Of the longest task of the page's main thread:
milliseconds of CPU, and as the clock has it, which on a busy machine counts the work of others.
`comes`: from the question until all is shown; `stops`: Escape in the middle;
`leaves`: another conversation is opened; `returns`: this one again; `reloads`: the page with it,
which takes the old document down, too; `opens`: the same page from an empty one.
"""

import argparse
import collections
import json
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.report import header  # noqa: E402
from tests.faults.conftest import SCRIPTED  # noqa: E402
from tests.live.conftest import Server  # noqa: E402
from tests.page.conftest import launch, say, wait_until_begun  # noqa: E402


def table(columns, rows):
    head = "|" + " a |" * columns + "\n|" + "---|" * columns + "\n"
    return head + ("|" + " *b* |" * columns + "\n") * rows


SIZE = 10_000_000
LINE = "word *and* `code` **strong** [a](https://b.example) "
CASES = {
    "table of 2 columns": table(2, 5000),
    "table of 10 columns": table(10, 1000),
    "table of 100 columns": table(100, 100),
    "10 MB of one line": "x" * SIZE,
    "10 MB of one line with markup": LINE * (SIZE // len(LINE)),
    "200 KB of code": "```python\n" + "def f(a): return 'b'  # c\n" * 8000 + "```\n",
    "200 KB of paragraphs": ("A **word** and `code`. " * 20 + "\n\n") * 440,
}
SHOWN = """(length) => {
  const [article] = [...document.querySelectorAll("article.assistant")].slice(-1);
  const text = article?.querySelector(".text")?.textContent ?? "";
  return !document.querySelector("[aria-busy=true]") && text.length >= length;
}"""


def stream_of(text, piece=4000):
    pieces = [text[at : at + piece] for at in range(0, len(text), piece)]
    deltas = [{"index": 0, "delta": {"content": one}} for one in pieces]
    deltas.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    lines = [f"data: {json.dumps({'choices': [delta]})}\n\n" for delta in deltas]
    return "".join([*lines, "data: [DONE]\n\n"])


def longest(events):
    """The longest tasks of the thread that has run most functions of the page."""
    thread = lambda event: (event["pid"], event["tid"])  # noqa: E731
    calls = collections.Counter(thread(one) for one in events if one["name"] == "FunctionCall")
    [(main, _)] = calls.most_common(1)
    tasks = [
        one
        for one in events
        if one["name"].endswith("RunTask") and thread(one) == main and "dur" in one
    ]
    return [max(one.get(name, 0) for one in tasks) / 1000 for name in ("tdur", "dur")]


class Visit:
    def __init__(self, browser, url, text):
        self.browser = browser
        self.context = browser.new_context(viewport={"width": 1440, "height": 900})
        self.page = self.context.new_page()
        self.page.set_default_timeout(300_000)
        body = {"content_type": "text/event-stream", "body": stream_of(text)}
        self.page.route("**/v1/chat/completions", lambda route: route.fulfill(**body))
        self.page.goto(url)
        wait_until_begun(self.page)
        self.length = len(text) // 8  # at least, since marks of Markdown are not shown

    def freeze(self, act, is_shown=True):
        """Milliseconds of CPU and clock, of the longest tasks; seconds until all is there."""
        self.browser.start_tracing(page=self.page, categories=["toplevel", "devtools.timeline"])
        begin = time.monotonic()
        act()
        if is_shown:
            self.page.wait_for_function(SHOWN, arg=self.length, polling=200)
        taken = time.monotonic() - begin
        self.page.wait_for_timeout(500)
        events = json.loads(self.browser.stop_tracing())["traceEvents"]
        return *longest(events), taken


def run(browser, url, text):
    visit = Visit(browser, url, text)
    page = visit.page
    yield "comes", visit.freeze(lambda: say(page, "Hi!"))
    yield "leaves", visit.freeze(lambda: page.keyboard.press("Control+Shift+O"), False)
    yield "returns", visit.freeze(lambda: page.locator("#list .title").click())
    yield "reloads", visit.freeze(page.reload)
    page.goto("about:blank")
    yield "opens", visit.freeze(lambda: page.goto(url))
    visit.context.close()
    visit = Visit(browser, url, text)
    page = visit.page

    def stop():
        say(page, "Hi!")
        page.wait_for_function(SHOWN.replace("!document", "document"), arg=visit.length, polling=20)
        page.keyboard.press("Escape")

    yield "stops", visit.freeze(stop)
    visit.context.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--visits", type=int, default=3)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    options = parser.parse_args()
    header()
    from playwright.sync_api import sync_playwright  # scripts/test-page installs it

    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        server = Server(SCRIPTED, pathlib.Path(directory))
        server.wait_until_answers("/")
        browser = launch(playwright)
        for case in options.cases:
            found = {}
            for _ in range(options.visits):
                for act, freeze in run(browser, server.url, CASES[case]):
                    found.setdefault(act, []).append(freeze)
            for act, freezes in found.items():
                cpu, clock, seconds = (
                    " ".join(f"{value:{form}}" for value in values)
                    for form, values in zip(
                        ("3.0f", "3.0f", "4.1f"), zip(*freezes, strict=True), strict=True
                    )
                )
                print(f"{case:30} {act:8} {cpu} ms, {clock} by the clock; {seconds} s", flush=True)
        browser.close()
        server.stop()


if __name__ == "__main__":
    main()
