"""What a chat request asks for: OpenAI's shape, which the other chat formats are turned into."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Discriminator, Field, Tag, field_validator

from app.body import BadRequest
from app.parameters import Generation, Tokens
from app.validation import TAG, Finite, without_nulls

MAX_MESSAGES = 2048  # OpenAI's
MAX_PARTS = 10_000  # of all messages of a chat

_TEXT, _PARTS = f"{TAG}text", f"{TAG}parts"


class TextPart(BaseModel):
    model_config = Finite

    type: Literal["text"]
    text: str


class Message(BaseModel):
    model_config = Finite

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {"annotations": ([],), "tool_calls": ([],)}

    role: Literal["system", "user", "assistant"] = Field(description="Who says it.")
    content: Annotated[
        Annotated[str, Tag(_TEXT)] | Annotated[list[TextPart], Field(fail_fast=True), Tag(_PARTS)],
        Discriminator(lambda value: _PARTS if isinstance(value, list) else _TEXT),
    ] = Field(description="The text, or parts of it, which are joined.")
    name: str | None = Field(None, description="For chat templates that look at it.")

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class Chat(Generation):
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        **Generation.neutral,
        "audio": (),
        "function_call": ("none",),
        "functions": ([],),
        "modalities": (["text"],),
        "parallel_tool_calls": (True, False),
        "reasoning_effort": (),
        "tool_choice": ("none",),
        "tools": ([],),
        "top_logprobs": (0,),
        "web_search_options": (),
    }

    messages: list[Message] = Field(
        min_length=1,
        fail_fast=True,
        json_schema_extra={"maxItems": MAX_MESSAGES},
        description="The conversation, through the model's own chat template; of at most"
        f" {MAX_PARTS:,} parts. Refused if the template refuses it, or if longer than the context.",
    )
    max_completion_tokens: Tokens | None = Field(
        None, description="The same as `max_tokens`. Refused together with it."
    )

    @field_validator("messages", mode="before")
    @classmethod
    def _clean(cls, value: Any) -> Any:
        """Without nulls: clients send back what they were given, `"refusal": null` and the like."""
        if not isinstance(value, list):
            return value
        if len(value) > MAX_MESSAGES:
            raise ValueError(f"must be at most {MAX_MESSAGES}")
        contents = [item.get("content") for item in value if isinstance(item, dict)]
        if sum(len(c) for c in contents if isinstance(c, list)) > MAX_PARTS:
            raise ValueError(f"must have at most {MAX_PARTS} parts together")
        return [_clean_message(item) if isinstance(item, dict) else item for item in value]

    def check(self) -> None:
        super().check()
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise BadRequest("give max_tokens or max_completion_tokens, not both", "max_tokens")

    @property
    def asked_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def names(self) -> dict[str, str]:
        limit = "max_tokens" if self.max_tokens else "max_completion_tokens"
        return {**super().names, "prompt": "messages", "max_new_tokens": limit}


def _clean_message(message: dict[str, Any]) -> dict[str, Any]:
    given = without_nulls(message)
    for name, values in Message.neutral.items():
        if given.get(name) in values:
            del given[name]
    if isinstance(content := given.get("content"), list):
        given["content"] = [without_nulls(p) if isinstance(p, dict) else p for p in content]
    return given
