"""Links of the documentation within the repository: files and headings."""

import posixpath

import pytest

from tests.docs.pages import ROOT, anchors, links, pages, read


@pytest.mark.parametrize("page", pages())
def test_no_link_is_dead(page):
    dead = []
    for target in links(read(page)):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        name = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        if not (ROOT / name).exists() or (anchor and anchor not in anchors(read(name))):
            dead.append(target)
    assert dead == []
