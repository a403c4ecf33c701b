"""Each fenced block of the documentation is run by scripts/test-docs, or says why not."""

import pytest

from tests.docs.marks import way_of
from tests.docs.pages import Block, blocks, pages


@pytest.mark.parametrize("page", pages())
def test_each_block_is_run_or_has_a_reason(page):
    for block in blocks(page):
        way = way_of(block)
        assert way.kind is None or all(old in block.text for old, _ in way.changes), block


@pytest.mark.parametrize(
    ("language", "mark"), [("yaml", ""), ("sh", "run: somehow"), ("sh", "not run: no")]
)
def test_a_block_without_a_way_or_a_reason_is_seen(language, mark):
    with pytest.raises(ValueError, match=r"page\.md:7"):
        way_of(Block("page.md", 7, language, mark, "text"))
