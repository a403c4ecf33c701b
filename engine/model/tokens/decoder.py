"""Converts tokens to text, token by token or all at once. Each decoder belongs to one thread."""

from codecs import utf_8_decode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KNOWN = {"ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"}  # decoders


@dataclass(frozen=True, slots=True)
class Beginning:
    """The characters that a tokenizer's decoder drops at the beginning of a text, but nowhere
    else.
    """

    has_metaspace: bool = False  # the spaces of the first token
    stripped: str = ""  # this character, at most `most` times
    most: int = 0


def read_beginning(decoders: Sequence[Mapping[str, Any]]) -> Beginning | None:
    """Returns None for decoders whose text isn't simply the joined bytes of the tokens, such as
    WordPiece.
    """
    if not decoders or not all(map(_is_known, decoders)):
        return None
    of = {decoder["type"]: decoder for decoder in decoders}
    strip = of.get("Strip", {"content": "", "start": 0})
    has_metaspace = of.get("Metaspace", {}).get("prepend_scheme", "never") != "never"
    return Beginning(has_metaspace, strip["content"], strip["start"])


def _is_known(decoder: Mapping[str, Any]) -> bool:
    match decoder:
        case {"type": "Replace"}:
            return "String" in decoder["pattern"]
        case {"type": "Strip"}:
            return not decoder["stop"]
        case {"type": kind}:
            return kind in KNOWN
    return False


class TextDecoder:
    """Converts the bytes of tokens to text, and returns each character as soon as its last byte has
    arrived. No valid character is ever lost or changed, even if it is split between tokens, and the
    parts of a text join to the whole text. If bytes aren't UTF-8, each maximal part of a character
    becomes one U+FFFD, and the valid characters around it are kept. The library `tokenizers`
    returns the same text, with two exceptions. With byte fallback, it turns each byte in a run into
    U+FFFD, including valid characters, if one byte in the run is invalid. If the characters of an
    added token are all GPT-2's names of bytes, such as "é", the library reads them as those bytes.
    Here, the token stands for the text that it spells.
    """

    __slots__ = ("_beginning", "_named", "_num_stripped", "_pending", "_pieces")

    def __init__(
        self,
        pieces: Sequence[bytes],
        named: Mapping[int, bytes] | None = None,
        beginning: Beginning | None = None,
    ) -> None:
        """`pieces`: the bytes of each token. `named`: the bytes of special tokens that are to be
        shown. `beginning`: what to drop from the first text, or None for a text that continues
        another.
        """
        self._pieces = pieces
        self._named = named or {}
        self._beginning = beginning
        self._num_stripped = 0
        self._pending = b""  # the beginning of a character

    @property
    def is_whole(self) -> bool:
        """Whether the text so far ends with a whole character."""
        return not self._pending

    def push(self, token_id: int, is_last: bool = False) -> str:
        """Returns the text that becomes certain with this token."""
        data = self._pieces[token_id]
        if self._named and token_id in self._named:
            data = self._named[token_id]
        if self._beginning is not None:
            return self._begin(data, is_last)
        if self._pending:
            data = self._pending + data
        text, used = utf_8_decode(data, "replace", is_last)
        self._pending = data[used:]
        return text

    def finish(self) -> str:
        """Returns the rest of the text, after the last token."""
        text, _ = utf_8_decode(self._pending, "replace", True)
        self._pending = b""
        return text

    def whole(self, token_ids: Iterable[int]) -> str:
        """Returns the text of all tokens."""
        rest = iter(token_ids)
        parts = []
        for token_id in rest:
            parts.append(self.push(token_id))
            if self._beginning is None:
                break
        named, pieces = self._named, self._pieces
        data = b"".join([named[i] if i in named else pieces[i] for i in rest])
        parts.append((self._pending + data).decode("utf-8", "replace"))
        self._pending = b""
        return "".join(parts)

    def _begin(self, piece: bytes, is_last: bool) -> str:
        """Returns the first text, without what the tokenizer drops there."""
        beginning = self._beginning
        assert beginning is not None
        if not piece:
            return ""
        self._beginning = None
        if beginning.has_metaspace:
            piece = piece.replace(b" ", b"")
        data = self._pending + piece
        text, used = utf_8_decode(data, "replace", is_last)
        self._pending = data[used:]
        begun = text
        while begun and self._num_stripped < beginning.most and begun[0] == beginning.stripped:
            begun = begun[1:]
            self._num_stripped += 1
        if not begun and self._num_stripped < beginning.most:
            self._beginning = Beginning(False, beginning.stripped, beginning.most)
        return begun
