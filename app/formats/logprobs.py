"""Logprobs of tokens, in the two formats of OpenAI's API. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any

from switchyard import engine

LEAST = -9999.0  # represents minus infinity, which JSON doesn't have, as in OpenAI's API


class TokenNames:
    """The names of tokens in a response: either their text or ids such as `token_id:17`."""

    def __init__(self, tokenizer: engine.Tokenizer, by_id: bool) -> None:
        self._tokenizer = tokenizer
        self._by_id = by_id

    def piece(self, token_id: int) -> bytes:
        """The bytes that the token adds to the text."""
        return self._tokenizer.piece(token_id)

    def decoder(self) -> engine.TextDecoder:
        return self._tokenizer.decoder()

    def name(self, token_id: int, mark: str = "") -> str:
        """The token's name. If its bytes aren't text, the name is `mark`, followed by the bytes
        with escapes such as `\\xf0`.
        """
        if self._by_id:
            return f"token_id:{token_id}"
        piece = self.piece(token_id)
        if not piece:  # a special token
            return self._tokenizer.token(token_id)
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return mark + piece.decode("utf-8", "backslashreplace")


class CompletionLogprobs:
    """Collects the logprobs of one choice of a completion as its tokens arrive."""

    def __init__(self, names: TokenNames) -> None:
        self._names = names
        self._decoder = names.decoder()
        self._offset = 0  # offset of the next token, in characters of the text
        self._shown = _empty()

    def add_prompt(
        self, token_ids: Sequence[int], text: str, logprobs: Sequence[engine.TokenLogprob | None]
    ) -> None:
        """Adds a prompt that is echoed as `text`.

        The text of the prompt's tokens is longer than `text` if the tokenizer adds a space at the
        beginning.
        """
        self._offset = len(text) - len(self._names.decoder().whole(token_ids))
        for token_id, logprob in zip(token_ids, logprobs, strict=True):
            self._add(token_id, logprob)
        self._decoder = self._names.decoder()
        self._offset = len(text)

    def add(self, logprobs: Iterable[engine.TokenLogprob]) -> None:
        for logprob in logprobs:
            self._add(logprob.token_id, logprob)

    def take(self) -> dict[str, list[Any]]:
        """The logprobs that were added since the last call."""
        shown, self._shown = self._shown, _empty()
        return shown

    def _add(self, token_id: int, logprob: engine.TokenLogprob | None) -> None:
        self._shown["tokens"].append(self._name(token_id))
        self._shown["token_logprobs"].append(logprob and _number(logprob.logprob))
        self._shown["top_logprobs"].append(logprob and self._top(logprob))
        self._shown["text_offset"].append(max(self._offset, 0))
        self._offset += len(self._decoder.push(token_id))

    def _top(self, logprob: engine.TokenLogprob) -> dict[str, float]:
        """The most probable tokens, and the token itself. If several tokens have the same text,
        only the most probable one is kept.
        """
        top: dict[str, float] = {}
        for token_id, value in (*logprob.top, (logprob.token_id, logprob.logprob)):
            top.setdefault(self._name(token_id), _number(value))
        return top

    def _name(self, token_id: int) -> str:
        return self._names.name(token_id, "bytes:")


def _empty() -> dict[str, list[Any]]:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def chat_logprobs(logprobs: Iterable[engine.TokenLogprob], names: TokenNames) -> dict[str, Any]:
    """The `logprobs` object of a choice in a chat completion."""
    return {"content": token_logprobs(logprobs, names), "refusal": None}


def token_logprobs(
    logprobs: Iterable[engine.TokenLogprob], names: TokenNames
) -> list[dict[str, Any]]:
    """For each token, its name, logprob and bytes, and the most probable tokens at its position."""
    return [
        {
            **_chat_token(logprob.token_id, logprob.logprob, names),
            "top_logprobs": [_chat_token(*pair, names) for pair in logprob.top],
        }
        for logprob in logprobs
    ]


def prompt_logprobs(
    logprobs: Iterable[engine.TokenLogprob | None], num_top: int, names: TokenNames
) -> list[dict[str, Any] | None]:
    """For each token in a prompt, the token itself and the `num_top` most probable tokens at its
    position, keyed by id.
    """
    return [None if one is None else _ranked(one, num_top, names) for one in logprobs]


def _ranked(one: engine.TokenLogprob, num_top: int, names: TokenNames) -> dict[str, Any]:
    ranks = {token_id: i for i, (token_id, _) in enumerate(one.top, 1)}
    return {
        str(token_id): {
            "logprob": _number(logprob),
            "rank": ranks.get(token_id),
            "decoded_token": names.name(token_id),
        }
        for token_id, logprob in ((one.token_id, one.logprob), *one.top[:num_top])
    }


def _chat_token(token_id: int, logprob: float, names: TokenNames) -> dict[str, Any]:
    piece = names.piece(token_id)
    return {
        "token": names.name(token_id),
        "logprob": _number(logprob),
        "bytes": list(piece) if piece else None,  # a special token isn't text
    }


def _number(logprob: float) -> float:
    return max(logprob, LEAST)
