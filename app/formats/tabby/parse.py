"""Requests to TabbyAPI's routes for tokens and for loading models. Pure."""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from switchyard.app.request.sampling import TokenId
from switchyard.app.request.validation import Object, Parameters

_ANY = (True, False)
OWN_NAMES = {"cache_size": "cache_tokens", "chunk_size": "max_chunk_size"}


class TokenEncode(Parameters):
    settled: ClassVar[dict[str, tuple[Any, ...]]] = {"decode_special_tokens": _ANY}

    text: str = Field(description="The text.")
    add_bos_token: bool = Field(True, description="Whether the model's BOS token comes first.")
    encode_special_tokens: bool = Field(
        True, description="Whether to recognize special tokens that the text spells out."
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
        fail_fast=True, description="Token ids. Refused if an id is not in the vocabulary."
    )
    decode_special_tokens: bool = Field(
        True, description="Whether to spell out special tokens in the text."
    )


class Draft(Object):
    place: ClassVar[str] = "draft"

    draft_model_name: str | None = Field(None, description="A directory of `models_dir`.")


class ModelLoad(Parameters):
    name: str = Field(description="A model that is served, or a directory in `models_dir`.")
    max_seq_len: int | None = Field(None, description="Like the setting of the same name.")
    cache_size: int | None = Field(None, description="Like the setting `cache_tokens`.")
    cache_mode: str | None = Field(
        None, description="Like the setting of the same name; `FP16` is `float16`."
    )
    gpu_split: list[float] | None = Field(None, description="Like the setting of the same name.")
    tensor_parallel: bool | None = Field(None, description="Like the setting of the same name.")
    rope_scale: float | None = Field(None, description="Like the setting of the same name.")
    rope_alpha: float | None = Field(None, description="Like the setting of the same name.")
    chunk_size: int | None = Field(None, description="Like the setting `max_chunk_size`.")
    max_batch_size: int | None = Field(None, description="Like the setting of the same name.")
    draft: Draft | None = Field(None, description="A draft model for speculative decoding.")

    @classmethod
    def other_names(cls) -> Mapping[str, str]:
        return {"model_name": "name"}

    @property
    def settings(self) -> dict[str, Any]:
        """The values in the request, keyed by the names of settings."""
        given = self.model_dump(exclude_unset=True, exclude={"name", "draft"})
        told = {OWN_NAMES.get(name, name): value for name, value in given.items()}
        if "cache_mode" in told:
            told["cache_mode"] = ["float16" if told["cache_mode"] == "FP16" else told["cache_mode"]]
        if self.draft is not None and self.draft.draft_model_name is not None:
            told["draft_model"] = self.draft.draft_model_name
        return told
