"""The words of the project: short sentences about components."""

import re

import pytest

from tests.docs.pages import ROOT, num_words, outside_of_code, pages, paragraphs, read, sentences

MAX_WORDS = 35
VAGUE = re.compile(r"\b(?:[Nn]obody|[Ww]hoever|so many|of which)\b")
FOLDERS = ["app", "engine", "scripts", "switchyard/cli", "switchyard/server", "switchyard/testing"]


def long_sentences(text):
    found = [one for part in paragraphs(text) for one in sentences(part)]
    return [one for one in found if num_words(one) > MAX_WORDS]


@pytest.mark.parametrize("page", pages())
def test_no_sentence_is_long(page):
    assert long_sentences(read(page)) == []


def test_a_long_sentence_is_seen_among_others():
    long = "A " + " ".join(["word"] * 35) + "."
    page = f"# {long}\n\n| {long} |\n\nShort.\n{long} `Code`.\n\n- Item\n\n```\n{long}\n```\n"
    assert long_sentences(page) == [long]


@pytest.mark.parametrize("page", pages())
def test_no_page_is_vague(page):
    assert [line for line in outside_of_code(read(page)) if VAGUE.search(line)] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_code_is_vague(folder):
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if VAGUE.search(line)
    ]
    assert found == []
