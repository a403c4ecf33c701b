"""Finds sentences that are too long in a page."""

import re
from collections.abc import Iterator

ITEM = re.compile(r"\s*(?:[-*]|\d+\.)\s+")
CODE = re.compile(r"`[^`]+`")
LIST_OF_CODE = re.compile(r"`x`(?:(?:,| and| or|, and|, or|/) ?`x`)+")
NAMES = (  # that may begin a sentence
    r"gunicorn|pydantic|exllamav2|llama\.cpp|nginx|vLLM|waitress|celery|uWSGI|mod_wsgi|llguidance"
)
END_OF_SENTENCE = re.compile(
    rf"(?<=[.!?])[\"')*]*\s+(?=[\"'(\[*]*(?:[A-Z0-9`\"(\[*]|(?:{NAMES})\b))"
)


def long_sentences(text: str, max_words: int) -> Iterator[tuple[int, int, int]]:
    """Yields the beginning and the end of each such sentence's paragraph, and the sentence's number
    of words.
    """
    for begin, paragraph in paragraphs(text):
        for sentence in END_OF_SENTENCE.split(paragraph):
            if (words := num_words(sentence)) > max_words:
                yield begin, begin + len(paragraph), words


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yields paragraphs and list items with their positions, without headings and tables."""
    lines: list[str] = []
    begin = place = 0
    for line in [*text.splitlines(keepends=True), "\n"]:
        is_item = ITEM.match(line)
        if not line.strip() or is_item or line.lstrip().startswith(("|", "#")):
            if lines:
                yield begin, "".join(lines)
            lines = [line] if is_item else []
            begin = place
        else:
            begin = begin if lines else place
            lines.append(line)
        place += len(line)


def num_words(sentence: str) -> int:
    """Counts the words, with code as one word, and a list of names in code as one word, too."""
    plain = LIST_OF_CODE.sub("`x`", CODE.sub("`x`", sentence))
    return sum(any(c.isalnum() for c in word) for word in plain.split())
