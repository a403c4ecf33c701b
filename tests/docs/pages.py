"""The pages of the documentation: their prose, headings, links and fenced blocks."""

import pathlib
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parent.parent.parent

FENCE = re.compile(r"^\s*```(.*)$")
LINK = re.compile(r"(?<!\!)\[([^\]]*)\]\(([^)\s]+)\)")
CODE = re.compile(r"`[^`]+`")


class Block(NamedTuple):
    """A fenced block."""

    page: str
    line: int
    language: str  # the first word behind the fence
    mark: str  # a comment on the line above that begins with `run:` or `not run:`
    text: str


def pages() -> list[str]:
    """The pages of the repository, except those of other projects."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in found.stdout.split() if (ROOT / name).is_file()]
    assert "README.md" in names
    return sorted(names)


def read(page: str) -> str:
    return (ROOT / page).read_text()


def outside_of_code(text: str) -> Iterator[str]:
    """Each line, an empty one in place of fenced blocks and comments."""
    inside = False
    for line in text.splitlines():
        if FENCE.match(line):
            inside = not inside
            yield ""
        else:
            yield "" if inside or line.lstrip().startswith("<!--") else line


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    found: Counter[str] = Counter()
    names = set()
    for line in outside_of_code(text):
        if heading := re.match(r"#+ (.*)", line):
            plain = LINK.sub(r"\1", heading[1]).strip().lower()
            name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
            names.add(f"{name}-{found[name]}" if found[name] else name)
            found[name] += 1
    return names


def links(text: str) -> Iterator[str]:
    for line in outside_of_code(text):
        for _, target in LINK.findall(CODE.sub("", line)):
            yield target


def blocks(page: str) -> Iterator[Block]:
    language, mark, begin, lines = None, "", 0, []
    above = ""
    for number, line in enumerate(read(page).splitlines(), 1):
        if not (fence := FENCE.match(line)):
            lines.append(line)
            above = line if language is None and line.strip() else above
        elif language is None:
            comment = re.match(r"\s*<!-- ((?:not )?run: .*) -->$", above)
            language, mark, begin, lines = fence[1], comment[1] if comment else "", number, []
        else:
            indent = len(line) - len(line.lstrip())
            text = "".join(f"{one[indent:]}\n" for one in lines)
            yield Block(page, begin, (language.split() or [""])[0], mark, text)
            language, above = None, ""
