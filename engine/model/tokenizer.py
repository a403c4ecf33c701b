"""Text to token ids and back, on request threads. No torch."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial

import tokenizers
from tokenizers.models import BPE

from switchyard.engine.errors import InvalidJob, ModelError, PromptTooLong
from switchyard.engine.job import Healing
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.pieces import read_pieces
from switchyard.engine.model.vocabulary import Vocabulary

ESCAPE = "\ufdd0"  # a noncharacter, refused in any text
USUAL_LENGTH = 6  # characters a token: shorter texts are encoded without a length check
CUT_TOKENS = 16  # more tokens than a cut through a text can add


class Tokenizer:
    """A model's tokenizer.json. Any number of threads. It encodes by `encode_batch`, even a single
    text: `encode` would hold the GIL for the whole text, and so delay the engine thread.
    """

    def __init__(self, model_dir: ModelDir) -> None:
        """Raises ModelError."""
        path = str(model_dir.path / "tokenizer.json")
        try:
            self._special = tokenizers.Tokenizer.from_file(path)
            self._literal = tokenizers.Tokenizer.from_file(path)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as reason:  # Exceptions, and panics of Rust, which are none
            raise ModelError(f"{path} can't be read: {reason}") from None
        for tokenizer in (self._special, self._literal):  # the file's settings are for training
            tokenizer.no_truncation()
            tokenizer.no_padding()
            if isinstance(tokenizer.model, BPE):
                # Each thread would cache up to 10,000 words, some 3.5 MB, beyond the tokenizer's
                # life. Without the cache a text takes a fifth longer.
                tokenizer.model._resize_cache(0)
        # A property of the whole tokenizer, not of a call: hence two tokenizers.
        self._literal.encode_special_tokens = True
        # Stands for a special token of a template, with its effect on the text around it.
        self._literal.add_tokens([tokenizers.AddedToken(ESCAPE, normalized=False)])
        self._place_id = self._literal.token_to_id(ESCAPE)
        added = self._special.get_added_tokens_decoder()
        self._special_ids = {t.content: token_id for token_id, t in added.items() if t.special}
        self._special_tokens = {token_id: t for token_id, t in added.items() if t.special}
        # Such tokens are matched in the normalized text.
        self._is_normalized = any(t.normalized for t in self._special_tokens.values())
        longest_first = sorted(self._special_ids, key=len, reverse=True)
        alternatives = "|".join(map(re.escape, longest_first)) or r"(?!)"
        self._first_character = re.compile(f"(?s:(?={alternatives})(.))")
        self._unescaped_pattern = re.compile(f"(?:{alternatives})(?!{ESCAPE})")
        unknown = model_dir.special_token("unk_token")  # any text may need the unknown token
        self._forbidden_ids = {i for t, i in self._special_ids.items() if t != unknown}
        self._bos_ids = self._find_bos(model_dir)
        self.special_ids: Mapping[str, int] = self._special_ids
        self.eos_token_ids = model_dir.eos_token_ids or self._find_eos(model_dir)

    @property
    def serialized(self) -> str:
        """The tokenizer.json, without padding and truncation."""
        text: str = self._special.to_str()
        return text

    def encode(
        self,
        text: str,
        max_tokens: int,
        add_bos: bool = True,
        parse_special: bool = False,
    ) -> tuple[int, ...]:
        """Token ids of a plain prompt: BOS, if the model wants one and the text lacks it, then the
        text. Special tokens in the text count only if `parse_special`. Raises PromptTooLong for
        more than `max_tokens`.
        """
        _check(text)
        encode = partial(self._batch, self._special) if parse_special else self._ordinary
        bos = self._bos_ids if add_bos else []

        def with_bos(text: str) -> list[int]:
            token_ids = encode(text)
            return token_ids if token_ids[: len(bos)] == bos else bos + token_ids

        return self._limited(with_bos, text, max_tokens)

    def encode_template(self, text: str, max_tokens: int) -> tuple[int, ...]:
        """Token ids of a chat template's output, in which special tokens count unless escaped.

        Raises PromptTooLong for more than `max_tokens`.
        """
        is_plain = ESCAPE not in text and not self._is_normalized
        encode = partial(self._batch, self._special) if is_plain else self._encode_escaped
        return self._limited(encode, text, max_tokens)

    def check_length(self, text: str, max_tokens: int) -> None:
        """Raises PromptTooLong for a text that is clearly too long, before further work."""
        _check_length(self._ordinary, text, max_tokens)

    def escape(self, text: str) -> str:
        """A user's text for a chat template, in which special tokens become ordinary text."""
        _check(text)
        if not any(token in text for token in self._special_ids):  # faster than the pattern
            return text
        return self._first_character.sub(rf"\1{ESCAPE}", text)

    def decode(self, token_ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of `token_ids`, by default without special tokens."""
        with _blaming("the tokens", "tokens"):
            texts: list[str] = self._special.decode_batch([list(token_ids)], skip_special)
        return texts[0]

    def decode_given(self, token_ids: Sequence[int], max_tokens: int) -> str:
        """Text of a client's tokens, special ones included. Raises InvalidJob for an id without a
        token, PromptTooLong for more than `max_tokens`.
        """
        if len(token_ids) > max_tokens:
            raise PromptTooLong(f"tokens: {len(token_ids)} are more than {max_tokens}", "tokens")
        for token_id in set(token_ids):
            if not self.token(token_id):
                raise InvalidJob(f"tokens: the vocabulary has no token {token_id}", "tokens")
        return self.decode(token_ids, skip_special=False)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.pieces)

    def heal(self, prompt: tuple[int, ...]) -> tuple[tuple[int, ...], Healing]:
        """Returns the prompt without its last token, and the rule to restore that token's text.
        Raises InvalidJob.
        """
        *_, last = prompt
        try:
            text = self.piece(last).decode()
        except UnicodeDecodeError:
            raise InvalidJob("the prompt ends in a part of a character", "healing") from None
        if not text or len(prompt) == 1:
            raise InvalidJob("the prompt ends in a special token, or is one token", "healing")
        return prompt[:-1], Healing(text, self.vocabulary.beginning_with(text.encode()))

    def breakers(self, texts: Sequence[str]) -> tuple[int, ...]:
        """Tokens that contain one of `texts`; for a text in no token, its last token."""
        token_ids: set[int] = set()
        for text in texts:
            found = self.vocabulary.containing(text.encode())
            token_ids.update(found or self._ordinary(text)[-1:])
        return tuple(sorted(token_ids))

    def piece(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text; empty for a special token, or an id without a
        token.
        """
        return self.pieces[token_id] if token_id < len(self.pieces) else b""

    def token(self, token_id: int) -> str:
        """How the vocabulary spells a token, special or not; empty for an id without a token."""
        return self._special.id_to_token(token_id) or ""

    def token_id(self, token: str) -> int | None:
        """The id of a token that the vocabulary spells so."""
        found: int | None = self._special.token_to_id(token)
        return found

    @cached_property
    def pieces(self) -> Sequence[bytes]:
        """The bytes that each token adds to a text, by its id."""
        return read_pieces(self._special)

    def _limited(
        self, encode: Callable[[str], list[int]], text: str, max_tokens: int
    ) -> tuple[int, ...]:
        _check_length(encode, text, max_tokens)
        token_ids = encode(text)
        if len(token_ids) > max_tokens:
            raise _too_long(len(token_ids), max_tokens)
        return tuple(token_ids)

    def _encode_escaped(self, text: str) -> list[int]:
        """Unescaped special tokens count; all else is ordinary text."""
        parts: list[str] = []
        places: list[int] = []
        start = 0
        for match in self._unescaped_pattern.finditer(text):
            part = text[start : match.start()].replace(ESCAPE, "")
            start = match.end()
            token_id = self._special_ids[match[0]]
            if self._special_tokens[token_id].lstrip:
                part = part.rstrip()
            if self._special_tokens[token_id].rstrip:
                start = _end_of_space(text, start)
            parts.append(part)
            places.append(token_id)
        parts.append(text[start:].replace(ESCAPE, ""))
        found = iter(places)
        token_ids = self._ordinary(ESCAPE.join(parts))
        return [next(found) if i == self._place_id else i for i in token_ids]

    def _ordinary(self, text: str) -> list[int]:
        """Token ids of `text`, none of them special."""
        token_ids = self._batch(self._literal, text)
        if self._forbidden_ids.isdisjoint(token_ids):
            return token_ids
        # The vocabulary also has a special token's text as an ordinary piece: split it.
        return [
            part
            for i in token_ids
            for part in (self._spell(i) if i in self._forbidden_ids else [i])
        ]

    def _spell(self, token_id: int) -> list[int]:
        """The characters of a special token, one by one."""
        token_ids: list[int] = []
        for character in self._special_tokens[token_id].content:
            # Printable ASCII stands for itself in every vocabulary; encoded alone it might get a
            # space.
            known = self._literal.token_to_id(character) if "!" <= character <= "~" else None
            if known is None:
                token_ids += self._batch(self._literal, character)
            else:
                token_ids.append(known)
        return token_ids

    @staticmethod
    def _batch(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
        with _blaming("the text", "prompt"):
            ids: list[int] = tokenizer.encode_batch([text], add_special_tokens=False)[0].ids
        return ids

    def _find_eos(self, model_dir: ModelDir) -> tuple[int, ...]:
        """The end token of tokenizer_config.json, for a model whose other files name none."""
        eos = model_dir.special_token("eos_token")
        eos_id = self._special.token_to_id(eos) if eos else None
        return () if eos_id is None else (eos_id,)

    def _find_bos(self, model_dir: ModelDir) -> list[int]:
        """The tokens that the post-processor, or tokenizer_config.json, puts before a prompt."""
        if model_dir.tokenizer_config.get("add_bos_token") is False:
            return []
        ids: list[int] = self._special.encode("", add_special_tokens=True).ids
        bos = model_dir.special_token("bos_token")
        bos_id = self._special.token_to_id(bos) if bos else None
        if bos_id is None:
            return []
        wanted = model_dir.tokenizer_config.get("add_bos_token") is True or ids[:1] == [bos_id]
        return [bos_id] if wanted else []


@contextlib.contextmanager
def _blaming(what: str, param: str) -> Iterator[None]:
    """Raises InvalidJob for a failure of the library, an Exception or a panic of Rust: a word
    without a token, a regular expression that would backtrack forever.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as reason:
        message = f"the model's tokenizer can't read {what}: {reason}"
        raise InvalidJob(message, param) from None


def _check(text: str) -> None:
    if ESCAPE in text:
        raise InvalidJob("the text contains the noncharacter U+FDD0", "prompt")


def _check_length(encode: Callable[[str], list[int]], text: str, max_tokens: int) -> None:
    """Raises PromptTooLong as soon as the pieces so far have too many tokens together: a refusal
    must not wait for a text that is far too long.
    """
    if len(text) <= USUAL_LENGTH * max_tokens:
        return
    size = max(max_tokens, 4096)
    num_tokens = 0
    for start in range(0, len(text), size):
        num_tokens += len(encode(text[start : start + size])) - CUT_TOKENS
        if num_tokens > max_tokens:
            raise _too_long(num_tokens, max_tokens, is_whole=False)


def _too_long(num_tokens: int, max_tokens: int, is_whole: bool = True) -> PromptTooLong:
    return PromptTooLong(
        f"the prompt has more than {max_tokens} tokens, too many for the model's context",
        "prompt",
        num_tokens,
        limit=max_tokens,
        is_whole=is_whole,
    )


def _end_of_space(text: str, start: int) -> int:
    while text[start : start + 1].isspace():
        start += 1
    return start
