"""Limits how much a tokenizer may lengthen a text, because a tokenizer.json of 1 KB can turn a
letter into gigabytes.
"""

import base64
import binascii
import json
import math
from collections.abc import Iterator
from typing import Any

import tokenizers

from switchyard.engine.errors import ModelError

MAX_GROWTH = 64  # times a text's length; sentencepiece's own table needs 33
MAX_ADDED = 2**14  # tokens; Gemma 3 has 6,415
MAX_AFFIX = 64  # characters that a model adds to each piece
MAX_PARTS = 64  # of a sequence of normalizers, pre-tokenizers or decoders

_LISTS = ("normalizers", "pretokenizers", "decoders")


def check_growth(tokenizer: tokenizers.Tokenizer) -> None:
    """Raises ModelError if a text could become more than MAX_GROWTH times as long on its way to
    tokens or back. Also raises it if there are too many added tokens or steps to process in each
    request.
    """
    added = tokenizer.get_added_tokens_decoder()
    if len(added) > MAX_ADDED:
        raise ModelError(f"has {len(added)} added tokens; at most {MAX_ADDED} are allowed")
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if len(getattr(tokenizer.model, name, None) or "") > MAX_AFFIX:
            raise ModelError(f"has a {name} of more than {MAX_AFFIX} characters")
    encoding = [*_parts(tokenizer.normalizer), *_parts(tokenizer.pre_tokenizer)]
    for parts in (encoding, [*_parts(tokenizer.decoder)]):
        growth = math.prod(map(_growth, parts[: MAX_PARTS + 1]))
        if len(parts) > MAX_PARTS:
            raise ModelError(f"has more than {MAX_PARTS} steps from text to tokens, or back")
        if growth > MAX_GROWTH:
            raise ModelError(
                f"could make a text {growth:.3g} times as long; the limit is {MAX_GROWTH}"
            )


def _parts(component: Any) -> Iterator[dict[str, Any]]:
    """The settings of a component, or of each component in a sequence."""
    waiting = [] if component is None else [json.loads(component.__getstate__())]
    while waiting:
        part = waiting.pop()
        inner = next((part[name] for name in _LISTS if name in part), None)
        if inner is None:
            yield part
        else:
            waiting += inner


def _growth(part: dict[str, Any]) -> float:
    """The maximum factor by which a step can lengthen a text of one character or more."""
    match part["type"]:
        case "Prepend":
            return 1 + len(part["prepend"])
        case "Replace":
            content, pattern = len(part["content"]), part["pattern"].get("String")
            # A regular expression may match nothing between any two characters.
            return 1.0 + content if pattern is None else max(1.0, content / max(1, len(pattern)))
        case "Precompiled":
            return _longest(part["precompiled_charsmap"])
        case "ByteLevel":
            return 2.0
    return 1.0


def _longest(table: str) -> int:
    """The length of the longest text in a sentencepiece table, which consists of a trie's size, the
    trie, and texts that each end with a zero byte.
    """
    try:
        data = base64.b64decode(table or "")
    except binascii.Error:
        raise ModelError("has a table of characters that is not base64") from None
    texts = data[4 + int.from_bytes(data[:4], "little") :]
    return max(1, *map(len, texts.split(b"\0")))
