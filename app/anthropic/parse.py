"""Request bodies of Anthropic's API, to chats of OpenAI's shape. Pure."""

from typing import Any, ClassVar

from pydantic import BaseModel, Field, field_validator

from app.anthropic.content import CacheControl, Content, Message, TextBlock, clean, text_of, to_chat
from app.body import BadRequest
from app.chat.request import MAX_MESSAGES, Chat
from app.parameters import Generation, ModelName, StopString, StreamOptions, Tokens
from app.validation import Finite, Parameters, validate, without_nulls


class Metadata(BaseModel):
    model_config = Finite

    user_id: str | None = Field(None, description="In the server's log at level DEBUG.")


class Conversation(Parameters):
    """What is asked of a message, and of a count of its tokens."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        "context_management": ({"edits": []},),
        "mcp_servers": ([],),
        "output_config": ({}, {"effort": "high"}),  # its default
        "speed": ("standard",),
        "thinking": ({"type": "disabled"}, {"type": "adaptive"}),
        "tool_choice": ({"type": "auto"}, {"type": "none"}),
        "tools": ([],),
        "user_profile_id": (),
        "workspace_id": (),
    }

    model: ModelName = None
    messages: list[Message] = Field(
        min_length=1,
        max_length=MAX_MESSAGES,
        fail_fast=True,
        description="Of the roles `user`, `assistant`, `system`; each a string, or blocks of type"
        " `text`, which are lines; at most 10,000 blocks. Those of one role that follow each other"
        " are one turn.",
    )
    system: Content[TextBlock] | None = Field(
        None, description="What the model is told before the conversation."
    )
    cache_control: CacheControl | None = Field(
        None,
        description="Changes nothing, here and in blocks: the cache keeps every prefix as long as"
        " there is room.",
    )

    @field_validator("messages", mode="before")
    @classmethod
    def _clean_messages(cls, value: Any) -> Any:
        return clean(value)

    @field_validator("system", mode="before")
    @classmethod
    def _clean_system(cls, value: Any) -> Any:
        is_list = isinstance(value, list)
        return [without_nulls(b) if isinstance(b, dict) else b for b in value] if is_list else value

    def check(self) -> None:
        super().check()
        if self.messages[-1].role == "assistant":
            where = f"messages.{len(self.messages) - 1}"
            raise BadRequest(f"{where}: the last message must not be the assistant's", where)

    def chat(self) -> Chat:
        """Raises BadRequest."""
        return validate(Chat, self._values())

    def _values(self) -> dict[str, Any]:
        """The parameters of the chat."""
        messages = list(to_chat(self.messages))
        if self.system:
            messages.insert(0, {"role": "system", "content": text_of(self.system)})
        return {"model": self.model, "messages": messages}


class MessageRequest(Conversation, Generation):
    """Takes, beside Anthropic's parameters, those of all other generations by their names."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        **Conversation.neutral,
        "container": (),
        "diagnostics": (),
        "inference_geo": (),
        "service_tier": ("auto", "standard_only"),
    }

    # These have other names here, or no place in the answer: not to be asked for.
    n: ClassVar[int] = 1  # type: ignore[misc]
    stop: ClassVar[list[str]] = []  # type: ignore[misc]
    stream_options: ClassVar[StreamOptions | None] = None  # type: ignore[misc]
    user: ClassVar[str | None] = None  # type: ignore[misc]

    max_tokens: Tokens = Field(
        description="Most new tokens. Refused if they and the prompt exceed the context."
    )
    stop_sequences: list[StopString] = Field(
        default=[],
        max_length=16,
        fail_fast=True,
        description="The text ends before the one that begins first in it.",
    )
    metadata: Metadata | None = Field(None, description="Who it is for.")

    @field_validator("metadata", mode="before")
    @classmethod
    def _clean_metadata(cls, value: Any) -> Any:
        return without_nulls(value) if isinstance(value, dict) else value

    def _values(self) -> dict[str, Any]:
        shared = self.model_fields_set & Generation.model_fields.keys()
        return {
            **{name: getattr(self, name) for name in shared},
            **super()._values(),
            "stop": self.stop_sequences,
            "user": self.metadata and self.metadata.user_id,
        }


def message(body: dict[str, Any]) -> Chat:
    """Raises BadRequest."""
    return validate(MessageRequest, body).chat()


def count(body: dict[str, Any]) -> Chat:
    """Raises BadRequest."""
    return validate(Conversation, body).chat()
