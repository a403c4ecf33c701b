"""A model's tokens in the format that llguidance accepts. Can be used on any thread."""

from collections.abc import Sequence
from functools import cached_property

from llguidance import LLTokenizer, TokenizerWrapper

from switchyard.engine.errors import ModelError
from switchyard.engine.model.tokenizer import Tokenizer

MAX_BYTES = 64  # of a token for a text that the tokenizer itself can't encode
# Parts of strings for which llguidance keeps a mask of all tokens: its own list, without the part
# for white space. With 200,000 tokens, each part costs 12 MB, and that one makes no mask faster.
SLICES = [r'[^"\\\x00-\x1F\x7F]' + number for number in ("{1,10}", "{1,30}", "+")]


def make_tokenizer(tokenizer: Tokenizer, pieces: Sequence[bytes]) -> LLTokenizer:
    """Returns the tokenizer for grammars. It treats no text as a control token. In a grammar,
    "<|im_end|>" means ten characters, because a token would end the turn. Rules name control tokens
    by their ids. Other added tokens are ordinary text.

    `pieces`: the bytes of each token, including special tokens. Raises ModelError.
    """
    try:
        tokens = TokenizerWrapper(_Tokens(tokenizer, pieces))
        ends = list(tokenizer.eos_token_ids) or None
        return LLTokenizer(tokens, eos_token=ends, slices=SLICES)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as reason:  # ValueErrors, or Rust panics, which aren't `Exception`s
        message = " ".join(str(reason).split())
        raise ModelError(f"tokenizer.json can't be used for constraints: {message}") from None


class _Tokens:
    """The interface that TokenizerWrapper requires. It lives as long as the LLTokenizer, to which
    it holds no reference, because Python can't collect a reference cycle through Rust.
    """

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, pieces: Sequence[bytes]) -> None:
        self.eos_token_id = next(iter(tokenizer.eos_token_ids), None)
        self.tokens = pieces
        self.special_token_ids = sorted(tokenizer.control_ids)
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        """Returns the tokens of a text that a grammar forces within another text."""
        if not isinstance(text, str):
            raise TypeError("a text is needed")
        token_ids = self._tokenizer.encode_within(text)
        return self._longest(text.encode()) if token_ids is None else token_ids

    def _longest(self, text: bytes) -> list[int]:
        """The longest token at each position, up to a byte that is in no token."""
        token_ids: list[int] = []
        start = 0
        while start < len(text):
            ends = range(min(len(text), start + MAX_BYTES), start, -1)
            end = next((end for end in ends if text[start:end] in self._ids), None)
            if end is None:
                break
            token_ids.append(self._ids[text[start:end]])
            start = end
        return token_ids

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        """The ids of tokens by their bytes, without control tokens."""
        control = {*self.special_token_ids}
        return {piece: i for i, piece in enumerate(self.tokens) if piece and i not in control}
