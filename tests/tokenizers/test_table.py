"""The table of families in docs/models.md is as their files are."""

from scripts import family_table
from tests.tokenizers.families import EACH_RUN


def test_the_table_of_families_is_as_their_files_are(request):
    page = family_table.PAGE.read_text()
    if request.config.getoption("every_tokenizer"):
        assert page == family_table.write(page), "run .venv/bin/python scripts/family_table.py"
    for family in EACH_RUN:
        assert family_table.line(family) in page, "run .venv/bin/python scripts/family_table.py"
