"""The tables of docs/configuration.md are as the code has them."""

from collections import Counter

from scripts import setting_table


def test_each_setting_is_in_one_group():
    names = Counter(name for group in setting_table.GROUPS.values() for name in group.split())
    assert names == Counter(setting_table.fields().keys())


def test_the_tables_of_settings_are_as_the_code_has_them():
    page = setting_table.PAGE.read_text()
    assert page == setting_table.write(page), "run .venv/bin/python scripts/setting_table.py"
    groups = [found[2] for found in setting_table.TABLE.finditer(page)]
    assert groups == list(setting_table.GROUPS)
