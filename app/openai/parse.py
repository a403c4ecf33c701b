"""Request bodies of OpenAI's API. Pure: no Flask, no engine state."""

from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator

from app.chat.request import Chat
from app.parameters import Generation, TokenId
from app.validation import validate

Prompt = (
    Annotated[str, Field(min_length=1)]
    | Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
)
Prompts = Annotated[list[Prompt], Field(min_length=1, fail_fast=True)]


class Completion(Generation):
    default_max_tokens = 16  # OpenAI's
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        **Generation.neutral,
        "best_of": (1,),
        "suffix": ("",),
    }
    kinds: ClassVar[dict[str, str]] = {
        "prompt": "must be a string, a list of strings, token ids, or a list of lists of them,"
        " and none empty"
    }

    prompt: Prompts = Field(
        description="A string, token ids, or a list of either; token ids are taken as they are."
        " Refused outside the vocabulary, and if longer than the context."
    )
    echo: bool = Field(False, description="The text begins with the prompt.")

    @field_validator("prompt", mode="before", json_schema_input_type=Prompt | Prompts)
    @classmethod
    def _list_of_prompts(cls, value: Any) -> Any:
        """A string or token ids, to a list of one."""
        is_one = isinstance(value, str) or (
            isinstance(value, list) and value and type(value[0]) is int
        )
        return [value] if is_one else value

    @property
    def names(self) -> dict[str, str]:
        return {**super().names, "n": "n" if self.n > len(self.prompt) else "prompt"}


def completion(body: dict[str, Any]) -> Completion:
    """Raises BadRequest."""
    return validate(Completion, body)


def chat(body: dict[str, Any]) -> Chat:
    """Raises BadRequest."""
    return validate(Chat, body)
