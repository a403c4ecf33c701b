"""Converts text to token ids and back, on request threads, without torch."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from tokenizers import AddedToken

from switchyard.engine.errors import InvalidJob, PromptTooLong
from switchyard.engine.job import Healing
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokens.control import control_ids, pattern_of
from switchyard.engine.model.tokens.decoder import TextDecoder, read_beginning
from switchyard.engine.model.tokens.density import Density
from switchyard.engine.model.tokens.file import check_ids, read_tokenizer
from switchyard.engine.model.tokens.length import check_length, too_long
from switchyard.engine.model.tokens.pieces import read_decoders, read_pieces
from switchyard.engine.model.tokens.vocabulary import Vocabulary

ESCAPE = "\ufdd0"  # a noncharacter, refused in any text


class Tokenizer:
    """A model's tokenizer, read from tokenizer.json. Any number of threads may use it. Even a
    single text is encoded with `encode_batch`, because `encode` would hold the GIL for the whole
    text and delay the engine thread.
    """

    def __init__(self, model_dir: ModelDir) -> None:
        """Raises ModelError."""
        self._tokenizer = read_tokenizer(model_dir)
        self._added = self._tokenizer.get_added_tokens_decoder()
        # The bytes that each token adds to a text, by id; and the bytes of added tokens, special or
        # not
        self.pieces: Sequence[bytes] = read_pieces(self._tokenizer)
        self.contents = {i: token.content.encode() for i, token in self._added.items()}
        check_ids(len(self.pieces), self._added, model_dir)
        self._beginning = read_beginning(read_decoders(self._tokenizer))
        size = model_dir.vocab_size or len(self.pieces)
        known = {i: token for i, token in self._added.items() if i < size}
        self.tag_ids: Mapping[str, int] = {t.content: i for i, t in known.items()}
        self.control_ids = control_ids(known, model_dir)
        self._bos_ids = self._find_bos(model_dir)
        self._density = Density()
        self._hide([*self.control_ids, *(self._added.keys() - known)])
        pattern = pattern_of(self._added[i].content for i in self.control_ids)
        self._pattern = re.compile(pattern)
        self._first_character = re.compile(f"(?s:(?={pattern})(.))")
        self._unescaped_pattern = re.compile(f"{pattern}(?!{ESCAPE})")
        # Any text may need the unknown token.
        self._forbidden_ids = self.control_ids - {*self._id_of(model_dir, "unk_token")}
        end = self._id_of(model_dir, "eos_token")
        self.eos_token_ids = tuple(dict.fromkeys((*model_dir.eos_token_ids, *end)))

    def encode(
        self,
        text: str,
        max_tokens: int,
        add_bos: bool = True,
        parse_special: bool = False,
    ) -> tuple[int, ...]:
        """Returns the token ids of a plain prompt, beginning with BOS if the model requires it and
        the text lacks it. Special tokens in the text are recognized only with `parse_special`.
        Raises PromptTooLong for more than `max_tokens`.
        """
        _check(text)
        encode = self._encode_escaped if parse_special else self._ordinary
        bos = self._bos_ids if add_bos else []

        def with_bos(text: str) -> list[int]:
            token_ids = encode(text)
            return token_ids if token_ids[: len(bos)] == bos else bos + token_ids

        return self._limited(with_bos, text, max_tokens)

    def encode_within(self, text: str) -> list[int] | None:
        """Returns the token ids of plain text inside another text, without the space that some
        tokenizers put before a text. Returns None if the resulting tokens don't have exactly the
        bytes of `text`.
        """
        for before in ("", "\n"):
            num_before = len(self._ordinary(before)) if before else 0
            token_ids = self._ordinary(before + text)[num_before:]
            if b"".join(map(self.piece, token_ids)) == text.encode():
                return token_ids
        return None

    def encode_template(self, text: str, max_tokens: int) -> tuple[int, ...]:
        """Returns the token ids of a chat template's output, in which special tokens are recognized
        unless escaped.

        Raises PromptTooLong for more than `max_tokens`.
        """
        return self._limited(self._encode_escaped, text, max_tokens)

    def guess(self, num_characters: int) -> int:
        """The minimum number of tokens that texts of this total length probably have, judging from
        the most recently encoded texts.
        """
        return self._density.guess(num_characters)

    def check_length(self, text: str, max_tokens: int) -> None:
        """Raises PromptTooLong early for a text that is clearly too long."""
        check_length(self._ordinary, text, max_tokens)

    def escape(self, text: str) -> str:
        """Prepare a user's text for a chat template, so that special tokens in it become ordinary
        text.
        """
        _check(text)
        if self._pattern.search(text) is None:  # far faster than the other pattern
            return text
        return self._first_character.sub(rf"\1{ESCAPE}", text)

    def decode(self, token_ids: Sequence[int], skip_special: bool = True) -> str:
        """Returns the text of `token_ids`, by default without special tokens."""
        known = [i for i in token_ids if i < len(self.pieces)]
        if self._beginning is not None:
            named = {} if skip_special else self.contents
            return TextDecoder(self.pieces, named, self._beginning).whole(known)
        shown = [i for i in known if self.pieces[i] or not (skip_special and i in self._added)]
        with _blaming("the tokens", "tokens"):
            texts: list[str] = self._tokenizer.decode_batch([shown], False)
        return texts[0]

    def decode_given(self, token_ids: Sequence[int], max_tokens: int) -> str:
        """Returns the text of a client's tokens, including special tokens. Raises InvalidJob for an
        id without a token, and PromptTooLong for more than `max_tokens`.
        """
        if len(token_ids) > max_tokens:
            raise PromptTooLong(
                f"tokens: there are {len(token_ids)}, but at most {max_tokens} are allowed",
                "tokens",
            )
        for token_id in set(token_ids):
            if not self.token(token_id):
                raise InvalidJob(f"tokens: the vocabulary has no token {token_id}", "tokens")
        return self.decode(token_ids, skip_special=False)

    def decoder(self) -> TextDecoder:
        """Returns a decoder for text that continues other text, such as a completion. It leaves out
        special tokens.
        """
        return TextDecoder(self.pieces)

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
            raise InvalidJob("the prompt ends with an incomplete character", "healing") from None
        if not text or len(prompt) == 1:
            raise InvalidJob(
                "the prompt ends with a special token, or has only one token", "healing"
            )
        return prompt[:-1], Healing(text, self.vocabulary.beginning_with(text.encode()))

    def breakers(self, texts: Sequence[str]) -> tuple[int, ...]:
        """Returns the tokens that contain one of `texts`. For a text that no token contains,
        returns the last of its tokens.
        """
        token_ids: set[int] = set()
        for text in texts:
            found = self.vocabulary.containing(text.encode())
            token_ids.update(found or self._ordinary(text)[-1:])
        return tuple(sorted(token_ids))

    def piece(self, token_id: int) -> bytes:
        """Returns the bytes that a token adds to a text. The result is empty for a special token,
        and for an id without a token.
        """
        return self.pieces[token_id] if token_id < len(self.pieces) else b""

    def token(self, token_id: int) -> str:
        """How the vocabulary spells a token, special or not. The result is empty for an id without
        a token.
        """
        return "" if token_id == self._place_id else self._tokenizer.id_to_token(token_id) or ""

    def token_id(self, token: str) -> int | None:
        """Returns the id of the token with this spelling in the vocabulary."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def _limited(
        self, encode: Callable[[str], list[int]], text: str, max_tokens: int
    ) -> tuple[int, ...]:
        check_length(encode, text, max_tokens)
        token_ids = encode(text)
        self._density.note(len(text), len(token_ids))
        if len(token_ids) > max_tokens:
            raise too_long(len(token_ids), max_tokens)
        return tuple(token_ids)

    def _encode_escaped(self, text: str) -> list[int]:
        """Encode text in which unescaped special tokens count; everything else is ordinary text."""
        parts: list[str] = []
        places: list[int] = []
        start = 0
        for match in self._unescaped_pattern.finditer(text):
            part = text[start : match.start()].replace(ESCAPE, "")
            start = match.end()
            token_id = self.tag_ids[match[0]]
            if self._added[token_id].lstrip:
                part = part.rstrip()
            if self._added[token_id].rstrip:
                start = _end_of_space(text, start)
            parts.append(part)
            places.append(token_id)
        parts.append(text[start:].replace(ESCAPE, ""))
        found = iter(places)
        token_ids = self._ordinary(ESCAPE.join(parts))
        return [next(found) if i == self._place_id else i for i in token_ids]

    def _ordinary(self, text: str) -> list[int]:
        """Returns the token ids of `text`, without any control token."""
        token_ids = self._batch(text)
        if self._forbidden_ids.isdisjoint(token_ids):
            return token_ids
        # The vocabulary also has a control token's text as an ordinary piece: split it.
        return [
            part
            for i in token_ids
            for part in (self._spell(i) if i in self._forbidden_ids else [i])
        ]

    def _spell(self, token_id: int) -> list[int]:
        """Returns the tokens of a control token's characters, one by one."""
        token_ids: list[int] = []
        for character in self._added[token_id].content:
            # Printable ASCII stands for itself in every vocabulary; encoded alone, it might get a
            # space.
            known = self.token_id(character) if "!" <= character <= "~" else None
            if known is None:
                token_ids += self._batch(character)
            else:
                token_ids.append(known)
        return token_ids

    def _batch(self, text: str) -> list[int]:
        with _blaming("the text", "prompt"):
            batch = self._tokenizer.encode_batch([text], add_special_tokens=False)
            ids: list[int] = batch[0].ids
        return ids

    def _hide(self, token_ids: Iterable[int]) -> None:
        """Make the library treat these tokens in a text as ordinary characters. A template's own
        tokens are inserted where ESCAPE marks them, with their effect on adjacent text.
        """
        flags = ("single_word", "lstrip", "rstrip", "normalized")
        hidden = [
            AddedToken(one.content, special=True, **{flag: getattr(one, flag) for flag in flags})
            for one in (self._added[i] for i in sorted(token_ids))
        ]
        self._tokenizer.add_special_tokens(hidden)
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.add_tokens([AddedToken(ESCAPE, normalized=False)])
        self._place_id = self._tokenizer.token_to_id(ESCAPE)

    def _id_of(self, model_dir: ModelDir, name: str) -> list[int]:
        """Returns the id of the token with this name in tokenizer_config.json, if there is one."""
        text = model_dir.special_token(name)
        token_id = self.token_id(text) if text else None
        return [] if token_id is None else [token_id]

    def _find_bos(self, model_dir: ModelDir) -> list[int]:
        """The tokens that the post-processor, or tokenizer_config.json, puts before a prompt."""
        wanted = model_dir.tokenizer_config.get("add_bos_token")
        bos = self._id_of(model_dir, "bos_token")
        if wanted is False or not bos:
            return []
        ids: list[int] = self._tokenizer.encode("", add_special_tokens=True).ids
        return bos if wanted is True or ids[:1] == bos else []


@contextlib.contextmanager
def _blaming(what: str, param: str) -> Iterator[None]:
    """Raises InvalidJob if the library fails with an Exception or a Rust panic. It fails, for
    example, on a word without a token, or on a regular expression that would backtrack forever.
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


def _end_of_space(text: str, start: int) -> int:
    while text[start : start + 1].isspace():
        start += 1
    return start
