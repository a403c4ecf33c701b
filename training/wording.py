"""Sentences with alternatives: `{Hi|Hello}{ there|}, $name!|Good day.`"""

import functools
import random
import re
from typing import Any

Part = str | tuple[tuple["Part", ...], ...]  # literal text, or alternatives of parts

_SLOT = re.compile(r"\$(\w+)")


def say(r: random.Random, template: str, **slots: Any) -> str:
    """One of the wordings of `template`: alternatives nest in braces; `$name` is a slot."""
    text = "".join(_choose(r, _parse(template)))
    return _SLOT.sub(lambda match: str(slots[match[1]]), text) if "$" in text else text


def _choose(r: random.Random, parts: tuple[Part, ...]) -> list[str]:
    texts: list[str] = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        else:
            texts += _choose(r, part[int(r.random() * len(part))])
    return texts


@functools.cache
def _parse(template: str) -> tuple[Part, ...]:
    parts, rest = _parse_parts(re.findall(r"[{|}]|[^{|}]+", f"{{{template}}}"))
    if rest:
        raise ValueError(f"unbalanced braces: {template}")
    return parts


def _parse_parts(tokens: list[str]) -> tuple[tuple[Part, ...], list[str]]:
    """Up to the end of this alternative; with what is left, from its `|` or `}` on."""
    parts: list[Part] = []
    while tokens and tokens[0] not in "|}":
        if tokens[0] != "{":
            parts.append(tokens[0])
            tokens = tokens[1:]
            continue
        alternatives = []
        while tokens[0] != "}":
            alternative, tokens = _parse_parts(tokens[1:])
            alternatives.append(alternative)
        parts.append(tuple(alternatives))
        tokens = tokens[1:]
    return tuple(parts), tokens


def casual(r: random.Random, text: str) -> str:
    """As people type: now and then without capital letter, without the last mark, or with please.

    Only for texts that hold nothing to be repeated to the letter.
    """
    if r.random() < 0.12:
        text = text.lower()
    if r.random() < 0.12:
        text = text.rstrip("?.!")
    if r.random() < 0.06:
        text = f"{text.rstrip('?.!')} please{text[-1] if text[-1] in '?.!' else ''}"
    return text


def an(noun: str) -> str:
    """With its article."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def listed(r: random.Random, words: list[str]) -> str:
    """One after the other, as a sentence or as lines."""
    if len(words) < 2 or r.random() < 0.7:
        return ", ".join(words[:-1]) + (" and " if len(words) > 1 else "") + words[-1]
    return "\n".join(f"{i}. {word}" for i, word in enumerate(words, 1))
