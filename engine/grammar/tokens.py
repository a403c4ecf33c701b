"""A model's tokens as llguidance takes them. Any thread."""

from collections.abc import Sequence

from llguidance import LLTokenizer, TokenizerWrapper

from switchyard.engine.errors import ModelError
from switchyard.engine.model.tokenizer import Tokenizer


def make_tokenizer(tokenizer: Tokenizer, pieces: Sequence[bytes]) -> LLTokenizer:
    """The tokenizer of grammars, in which no text is a control token: a grammar's "<|im_end|>" is
    ten characters; as a token it would end the turn. Rules name control tokens by their ids. Other
    added tokens are text as any.

    `pieces`: the bytes of each token, special ones included. Raises ModelError.
    """
    try:
        tokens = _Tokens(tokenizer, pieces)
        tokens.made = LLTokenizer(
            TokenizerWrapper(tokens), eos_token=list(tokenizer.eos_token_ids) or None
        )
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as reason:  # ValueErrors, and panics of Rust, which are no Exceptions
        message = " ".join(str(reason).split())
        raise ModelError(f"tokenizer.json can't constrain outputs: {message}") from None
    return tokens.made


class _Tokens:
    """What TokenizerWrapper asks for."""

    bos_token_id = None
    made: LLTokenizer  # of these tokens

    def __init__(self, tokenizer: Tokenizer, pieces: Sequence[bytes]) -> None:
        self.eos_token_id = next(iter(tokenizer.eos_token_ids), None)
        self.tokens = pieces
        self.special_token_ids = sorted(tokenizer.control_ids)
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        """The tokens of a text that a grammar forces, inside another text."""
        if not isinstance(text, str):
            raise TypeError("a text is wanted")
        token_ids = self._tokenizer.encode_within(text)
        if token_ids is None:
            token_ids = self.made.greedy_tokenize(text)
        return token_ids
