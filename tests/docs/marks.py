"""How a fenced block of the documentation is run, as its language or its mark says.

A mark is a comment above the block: `<!-- not run: REASON -->`, or `<!-- run: KIND; A=B; … -->`,
where A of the text becomes B. DIR in B is the page's own directory, ROOT the clone.
"""

from typing import NamedTuple

from tests.docs.pages import Block

BY_LANGUAGE = {"sh": "sh", "python": "python", "json": "json", "toml": "settings", "": "text"}
KINDS = {
    "sh": "in the clone, beside the page's server",
    "here": "likewise, in the page's own directory",
    "server": "each line that serves, until it is ready; other lines before",
    "server here": "likewise, in the page's own directory, where it stays until the page's end",
    "background": "in the page's own directory, until the page's end",
    "app": "as one server, in a process of its own, until it answers",
    "python": "in the clone, beside the page's server",
    "host": "in a module that has a Flask application",
    "host alone": "likewise, apart from the page's others",
    "host test": "by pytest, behind the page's first block of kind host",
    "json": "parsed, whole or by line",
    "toml": "parsed",
    "settings": "read as a server reads its settings",
    "settings here": "likewise, and kept in the page's own directory",
    "keys": "read as a server reads its file of keys",
    "text": "not at all: a picture, or what a program has written",
}


class Way(NamedTuple):
    kind: str | None  # None: it is not run
    reason: str
    changes: list[tuple[str, str]]


def way_of(block: Block) -> Way:
    """Raises ValueError for a block that is neither run nor has a reason."""
    place = f"{block.page}:{block.line}"
    if block.mark.startswith("not run: "):
        reason = block.mark.removeprefix("not run: ")
        if len(reason.split()) < 2:
            raise ValueError(f"{place}: why is it not run?")
        return Way(None, reason, [])
    kind, *changes = block.mark.removeprefix("run: ").split("; ") if block.mark else [""]
    kind = kind or BY_LANGUAGE.get(block.language, "")
    if kind not in KINDS:
        raise ValueError(f"{place}: needs a comment above it, `run: KIND` or `not run: REASON`")
    pairs = [change.partition("=") for change in changes]
    return Way(kind, "", [(old, new) for old, _, new in pairs])
