"""Tables of docs/configuration.md are as the code has them, and docs/comparison.md has sources."""

import re
from collections import Counter

from scripts import setting_table
from tests.docs.pages import ROOT, read


def test_each_setting_is_in_one_group():
    names = Counter(name for group in setting_table.GROUPS.values() for name in group.split())
    assert names == Counter(setting_table.fields().keys())


def test_the_tables_of_settings_are_as_the_code_has_them():
    page = setting_table.PAGE.read_text()
    assert page == setting_table.write(page), "run .venv/bin/python scripts/setting_table.py"
    groups = [found[2] for found in setting_table.TABLE.finditer(page)]
    assert groups == list(setting_table.GROUPS)


def test_each_claim_about_another_server_has_its_source():
    page = read("docs/comparison.md")
    table = page.partition("## Feature by feature")[2].partition("Sources, as read")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    rows = rows[1:]  # without the head
    assert len(rows) == 20 and {len(row) for row in rows} == {6}
    sources = set(re.findall(r"^(\d+)\. \[", page, re.MULTILINE))
    cited = set()
    for _, own, *others in rows:
        assert own in ("✓", "✗")
        for cell in others:
            mark, _, source = cell.partition(" ")
            assert cell == "?" or (mark in ("✓", "✗") and source in sources), cell
            cited |= {source} - {""}
    assert cited == sources
    for path in re.findall(r"`(benchmarks/results/[^`]+)`", page):
        assert (ROOT / path).is_file()
