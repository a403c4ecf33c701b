"""Requests to tokenize and detokenize. Pure."""

from typing import Any, ClassVar

from pydantic import Field

from switchyard.app.chat.request import Chat
from switchyard.app.request.neutral import Table
from switchyard.app.request.sampling import TokenId
from switchyard.app.request.validation import Parameters, validate


class OfModel(Parameters):
    model: str | None = Field(
        None, description="Default: the server's model. A name that isn't served gets a 404."
    )


class TokenizeContent(OfModel):
    """The body of llama.cpp's /tokenize."""

    content: str = Field(description="The text.")
    add_special: bool = Field(False, description="Whether the model's BOS token comes first.")
    parse_special: bool = Field(
        True, description="Whether to recognize special tokens that the text spells out."
    )
    with_pieces: bool = Field(
        False, description="Also return each token's text, or its bytes if they aren't text."
    )

    @property
    def names(self) -> dict[str, str]:
        return {"prompt": "content"}


class TokenizePrompt(OfModel):
    """The body of vLLM's /tokenize with a text."""

    prompt: str = Field(description="The text, handled as in `/v1/completions`.")
    add_special_tokens: bool = Field(
        True,
        description="Whether the model's BOS token comes first. If false, special tokens that the"
        " text spells out are recognized; lm_eval looks up their ids this way.",
    )
    return_token_strs: bool = Field(
        False, description="Also return each token's name in the vocabulary."
    )

    @property
    def names(self) -> dict[str, str]:
        return {}


class TokenizeChat(Chat):
    """The body of vLLM's /tokenize with messages."""

    neutral: ClassVar[Table] = Chat.neutral

    return_token_strs: bool = Field(
        False, description="Also return each token's name in the vocabulary."
    )


class Detokenize(OfModel):
    tokens: list[TokenId] = Field(
        fail_fast=True, description="Token ids. Refused if an id is not in the vocabulary."
    )


Tokenize = TokenizeContent | TokenizePrompt | TokenizeChat


def tokenize(body: dict[str, Any]) -> Tokenize:
    """Parses a request from its JSON body. Raises BadRequest."""
    if body.get("messages") is not None:
        return validate(TokenizeChat, body)
    if body.get("prompt") is not None:
        return validate(TokenizePrompt, body)
    return validate(TokenizeContent, body)


def detokenize(body: dict[str, Any]) -> Detokenize:
    """Parses a request from its JSON body. Raises BadRequest."""
    return validate(Detokenize, body)
