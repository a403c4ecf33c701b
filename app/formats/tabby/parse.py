"""Requests about tokens, as TabbyAPI has them. Pure."""

from typing import Any, ClassVar

from pydantic import Field

from switchyard.app.request.sampling import TokenId
from switchyard.app.request.validation import Parameters

_ANY = (True, False)


class TokenEncode(Parameters):
    settled: ClassVar[dict[str, tuple[Any, ...]]] = {"decode_special_tokens": _ANY}

    text: str = Field(description="The text.")
    add_bos_token: bool = Field(
        True, description="Whether the token comes first that begins a prompt of this model."
    )
    encode_special_tokens: bool = Field(
        True, description="Whether special tokens that the text spells out count as such."
    )

    @property
    def names(self) -> dict[str, str]:
        return {"prompt": "text"}


class TokenDecode(Parameters):
    settled: ClassVar[dict[str, tuple[Any, ...]]] = {
        "add_bos_token": _ANY,
        "encode_special_tokens": _ANY,
    }

    tokens: list[TokenId] = Field(
        fail_fast=True, description="Token ids. Refused if the vocabulary has none of that number."
    )
    decode_special_tokens: bool = Field(
        True, description="Whether the text spells out special tokens."
    )
