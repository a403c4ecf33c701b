"""Real text in real scripts: the names of languages, scripts and countries that CLDR has."""

import functools
import itertools
import random
import re

from babel import Locale
from babel.localedata import locale_identifiers
from tokenizers import Tokenizer

POOL = 24  # names from which one is chosen
BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a byte's token in vocabularies with byte fallback


@functools.cache
def names() -> tuple[str, ...]:
    """All names of all locales, each once, in an order that mixes the scripts."""
    found = set()
    for identifier in locale_identifiers():
        locale = Locale.parse(identifier)
        for table in (locale.languages, locale.scripts, locale.territories):
            found.update(table.values())
    mixed = sorted(found)
    random.Random(0).shuffle(mixed)
    return tuple(mixed)


def sample(tokenizer: Tokenizer, number: int) -> list[str]:
    """As many names, or all for 0: half of them those in which most tokens follow each other
    without a border between characters, which are the hardest to decode in pieces.
    """
    if not number:
        return list(names())
    pool = names()[: POOL * number]
    encodings = zip(pool, tokenizer.encode_batch(pool, add_special_tokens=False), strict=True)
    runs = {name: _longest_run(encoding.offsets) for name, encoding in encodings}
    by_run = sorted(pool, key=runs.__getitem__, reverse=True)
    hardest, others = by_run[: number // 2], by_run[number // 2 :]
    return hardest + random.Random(1).sample(others, min(number - len(hardest), len(others)))


def _longest_run(offsets: list[tuple[int, int]]) -> int:
    """Tokens in a row of which each ends in the character in which the next begins, over more than
    one character.
    """
    longest = run = 1
    begin = 0
    for (_, end), (start, next_end) in itertools.pairwise(offsets):
        begin, run = (begin, run + 1) if start < end else (start, 1)
        if next_end - begin > 1:
            longest = max(longest, run)
    return longest


def random_ids(tokenizer: Tokenizer, number: int, length: int) -> list[list[int]]:
    """Sequences of ordinary tokens, which divide and break characters anywhere."""
    added = tokenizer.get_added_tokens_decoder()
    ordinary = [i for i in sorted(tokenizer.get_vocab().values()) if i not in added]
    short = [i for i in ordinary if len(tokenizer.id_to_token(i)) <= 3]  # parts of characters
    drawn = random.Random(number)
    return [
        [drawn.choice(drawn.choice((ordinary, short))) for _ in range(length)]
        for _ in range(number)
    ]


def added_text(tokenizer: Tokenizer, token_ids: list[int]) -> str:
    """The text that tokens add to a text before them, by the library alone.

    With byte fallback the library drops all of a run of bytes if one is wrong. What is right of it
    is text: there the bytes are decoded together.
    """
    tokens = [tokenizer.id_to_token(i) for i in token_ids]
    if any(BYTE.fullmatch(token) for token in tokens):
        parts = [
            bytes.fromhex(found[1])
            if (found := BYTE.fullmatch(token))
            else token.replace("▁", " ").encode()
            for token in tokens
        ]
        return b"".join(parts).decode("utf-8", "replace")
    anchor = tokenizer.encode("x", add_special_tokens=False).ids
    before = tokenizer.decode(anchor)
    return tokenizer.decode([*anchor, *token_ids])[len(before) :]
