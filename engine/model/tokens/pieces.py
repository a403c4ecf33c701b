"""The bytes that each token of a vocabulary adds to a text. A character may take several tokens."""

import json
import re
from typing import Any

import tokenizers

from switchyard.engine.errors import ModelError

MAX_ID = 2**19  # of a token; the largest vocabularies have some 262,000

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # a byte's name in vocabularies with byte fallback


def read_pieces(tokenizer: tokenizers.Tokenizer) -> list[bytes]:
    """Returns the bytes by token id. They are empty for special tokens, which aren't text, and for
    ids without a token. Raises ModelError.
    """
    decoders = read_decoders(tokenizer)
    kinds = {decoder["type"] for decoder in decoders}
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    added = tokenizer.get_added_tokens_decoder()
    highest = max([*vocabulary.values(), *added], default=-1)
    if highest > MAX_ID:
        raise ModelError(
            f"tokenizer.json has a token with the id {highest}; the maximum is {MAX_ID}"
        )
    pieces = [b""] * (highest + 1)
    if "ByteLevel" in kinds:
        for token, token_id in vocabulary.items():
            pieces[token_id] = _byte_level(token)
    elif kinds & {"ByteFallback", "Metaspace", "Replace"}:
        has_bytes = "ByteFallback" in kinds
        for token, token_id in vocabulary.items():
            byte = _BYTE.fullmatch(token) if has_bytes else None
            pieces[token_id] = bytes.fromhex(byte[1]) if byte else _spaced(token, decoders).encode()
    else:
        for token_id in vocabulary.values():
            pieces[token_id] = tokenizer.decode([token_id]).encode()
    for token_id, one in added.items():
        pieces[token_id] = b"" if one.special else one.content.encode()
    return pieces


def read_decoders(tokenizer: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    """The settings of the tokenizer's decoder, or of each decoder in a sequence."""
    decoder = tokenizer.decoder
    return [] if decoder is None else _flat(json.loads(decoder.__getstate__()))


def _flat(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] == "Sequence":
        return [inner for outer in decoder["decoders"] for inner in _flat(outer)]
    return [decoder]


def _byte_level(token: str) -> bytes:
    """Decodes as the tokenizers library does. Each character becomes its byte; if one represents no
    byte, the whole token is plain text.
    """
    try:
        return bytes(map(_BYTE_OF.__getitem__, token))
    except KeyError:
        return token.encode()


def _spaced(token: str, decoders: list[dict[str, Any]]) -> str:
    for decoder in decoders:
        if decoder["type"] == "Metaspace":
            token = token.replace(decoder["replacement"], " ")
        elif decoder["type"] == "Replace" and "String" in decoder["pattern"]:
            token = token.replace(decoder["pattern"]["String"], decoder["content"])
    return token


def _bytes_of_characters() -> dict[str, int]:
    """GPT-2's characters for bytes. Printable bytes represent themselves; others are represented by
    the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{chr(byte): byte for byte in printable},
        **{chr(0x100 + i): byte for i, byte in enumerate(others)},
    }


_BYTE_OF = _bytes_of_characters()
