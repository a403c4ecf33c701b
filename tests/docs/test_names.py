"""The documentation names every route, metric and command, and no other."""

import itertools
import re

import pytest

from switchyard.app.delivery.reader import MEANINGS
from switchyard.app.errors import INTERNAL, KINDS, PLAIN_KINDS
from switchyard.cli import COMMANDS, keys, models, usage
from tests.docs.pages import CODE, ROOT, blocks, outside_of_code, pages, read
from tests.scripted import ScriptedBackend

METRIC = re.compile(r"`((?:vllm:|switchyard_)[^`]+)`")
PATH = re.compile(r"(?:^|(?<=[ `]))(/[\w{}./-]*…?)(?=$|[ `?])")
OURS = ("/admin/", "/api/", "/health", "/models", "/v1/", "/v2/", "/infill", "/completion")
OURS += ("/props",)
ELSEWHERE = {  # there with a file of keys, with a ledger, and under gunicorn
    *("switchyard_budget_tokens", "switchyard_keys_reloads_total"),
    *("switchyard_ledger_errors_total", "switchyard_request_threads"),
}


@pytest.fixture
def client(make_client):
    return make_client(ScriptedBackend(), ui=True)


def told(page):
    """Pieces of code in its prose and tables."""
    return [code[1:-1] for code in CODE.findall("\n".join(outside_of_code(read(page))))]


def test_each_route_is_in_the_api_pages_and_no_other(client):
    rules = {
        re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)
        for rule in client.application.url_map.iter_rules()
        if ".switchyard_docs." not in rule.endpoint and ".switchyard_ui." not in rule.endpoint
    }
    rules = {re.sub(r"{\w+}", "{}", rule) for rule in rules}
    api = ["docs/api.md", *(page for page in pages() if page.startswith("docs/api/"))]
    named = {
        path
        for page in [*api, "docs/models.md"]
        for code in told(page)
        for path in PATH.findall(code)
    }
    named = {re.sub(r"{\w+}", "{}", path) for path in named}
    whole = {path for path in named if not path.endswith(("…", "/")) or path in rules}
    assert sorted(rules - whole - {"/static/{}"}) == []
    assert sorted(path for path in whole - rules if path.startswith(OURS)) == []


def names_of(code):
    """The names in a metric's cell: without labels, with each of the names in braces."""
    plain = re.sub(r"{[^}]*}$", "", code)
    parts = [part.split(",") for part in re.split(r"[{}]", plain)]
    return {"".join(one) for one in itertools.product(*parts)}


def test_each_metric_is_in_the_table_and_no_other(client):
    families = re.findall(r"^# TYPE (\S+) (\w+)$", client.get("/metrics").text, re.MULTILINE)
    own = {name for name, _ in families if name.startswith(("vllm:", "switchyard_"))}
    own = {name for name in own if not name.endswith("_created")}
    rows = [line for line in read("docs/operations.md").splitlines() if line.startswith("|")]
    cells = [code for row in rows for code in METRIC.findall(row.split(" | ")[0])]
    assert {name for code in cells for name in names_of(code)} == own | ELSEWHERE


def test_each_code_of_an_error_is_in_the_table_and_no_other():
    table = read("docs/api.md").partition("## Errors\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| [\d, ]+ \|([^|]*)\|", table, re.MULTILINE)
    named = {code for cell in cells for code in re.findall(r"`(\w+)`", cell)}
    kinds = [INTERNAL, *KINDS.values(), *PLAIN_KINDS.values()]
    assert sorted(({kind.code for kind in kinds} | MEANINGS.keys()) - named) == []
    sources = "".join(file.read_text() for file in (ROOT / "app").rglob("*.py"))
    assert sorted(code for code in named if f'"{code}"' not in sources) == []


def test_each_command_is_in_the_table_and_no_other():
    table = read("docs/operations.md").partition("## Commands\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(COMMANDS)


@pytest.mark.parametrize("page", sorted({*pages()} - {"CHANGELOG.md"}))
def test_each_command_that_is_shown_exists(page):
    shown = [*told(page), *(line for b in blocks(page) for line in b.text.splitlines())]
    names = {n for code in shown for n in re.findall(r"(?:^|& |-m )switchyard (\w+)", code)}
    assert names <= {*COMMANDS}
    groups = {"keys": keys.keys, "models": models.models, "ledger": usage.ledger}
    for code in shown:
        for group, name in re.findall(r"(?:^|-m )switchyard (keys|models|ledger) (\w+)", code):
            assert name in groups[group].commands, code


def test_scripts_that_are_named_exist():
    named = {n for p in pages() for n in re.findall(r"\bscripts/([\w.-]*\w)", read(p))}
    assert sorted(n for n in named if not (ROOT / "scripts" / n).exists()) == []


def test_the_readme_explains_the_command_that_ci_runs_and_ci_runs_no_other():
    section = read("README.md").partition("\n## Test\n")[2].partition("\n## ")[0]
    _, command, explanation = section.split("```")
    head = '#!/bin/sh\nset -eu\ncd "$(dirname "$0")/.."\n'
    assert (ROOT / ".ci" / "run").read_text() == head + command.removeprefix("sh\n")
    assert len(explanation.split()) > 30
