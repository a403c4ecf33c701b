"""Request bodies of Anthropic's API, to chats of OpenAI's shape. Pure."""

from collections.abc import Collection
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field, field_validator

from switchyard.app.chat.request import MAX_MESSAGES, Chat
from switchyard.app.chat.tools import MAX_TOOLS
from switchyard.app.exceptions import BadRequest
from switchyard.app.formats.anthropic.content import (
    CacheControl,
    Content,
    Message,
    TextBlock,
    clean,
    has_calls,
    text_of,
    to_chat,
)
from switchyard.app.formats.anthropic.tools import (
    AnthropicTool,
    Thinking,
    ToolChoice,
    tools_in_chat,
)
from switchyard.app.request.generation import Generation, ModelName, StopString, Tokens
from switchyard.app.request.validation import Finite, Parameters, renaming, validate, without_nulls


class Metadata(BaseModel):
    model_config = Finite

    user_id: str | None = Field(None, description="In the server's log at level DEBUG.")


class OutputFormat(BaseModel):
    model_config = Finite

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(BaseModel):
    model_config = Finite

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        None,
        description="Passed on to the model's chat template; refused where that doesn't use it, but"
        " for `high`, the default.",
    )

    format: OutputFormat | None = Field(
        None, description="The answer is JSON that is valid by the `schema` in it."
    )

    @field_validator("format", mode="before")
    @classmethod
    def _clean_format(cls, value: Any) -> Any:
        return _clean(value)

    def in_chat(self, variables: Collection[str]) -> dict[str, Any]:
        """`variables`: that the model's chat template uses."""
        effort: str | None = self.effort
        if effort == "high" and "reasoning_effort" not in variables:
            effort = None
        schema = {"schema": self.format.schema_} if self.format is not None else None
        form = {"type": "json_schema", "json_schema": schema}
        return {
            "reasoning_effort": "xhigh" if effort == "max" else effort,
            "response_format": form if schema is not None else None,
        }


FORMAT = "output_config.format"


class MessagesChat(Chat):
    @property
    def names(self) -> dict[str, str]:
        names = super().names
        if names["constraint"] == "response_format":
            names["constraint"] = FORMAT
        return {
            **names,
            "reasoning_budget": "thinking.budget_tokens",
            "reasoning_effort": "output_config.effort",
            "response_format": FORMAT,
        }


class MessagesBody(Parameters):
    """What is asked of a message, and of a count of its tokens."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        "context_management": ({"edits": []},),
        "mcp_servers": ([],),
        "speed": ("standard",),
        "user_profile_id": (),
        "workspace_id": (),
    }

    model: ModelName = None
    messages: list[Message] = Field(
        min_length=1,
        max_length=MAX_MESSAGES,
        fail_fast=True,
        description="Of the roles `user`, `assistant`, `system`; each a string, or blocks of type"
        " `text`, `thinking`, `tool_use` and `tool_result`; at most 10,000 blocks. Those of one"
        " role that follow each other are one turn. If the last is the assistant's, the answer"
        " continues it.",
    )
    system: Content[TextBlock] | None = Field(
        None, description="What the model is told before the conversation."
    )
    cache_control: CacheControl | None = Field(
        None,
        description="Changes nothing, here and in blocks: the cache keeps every prefix as long as"
        " there is room.",
    )

    tools: list[AnthropicTool] = Field(
        default=[],
        max_length=MAX_TOOLS,
        fail_fast=True,
        description="Functions that the model may call.",
    )
    tool_choice: ToolChoice | None = Field(
        None,
        description="Which of the tools to call. Refused without tools, but for `none` and `auto`.",
    )
    thinking: Thinking | None = Field(None, description="Whether to think before the answer.")
    output_config: OutputConfig | None = Field(None, description="What the answer is like.")

    @field_validator("messages", mode="before")
    @classmethod
    def _clean_messages(cls, value: Any) -> Any:
        return clean(value)

    @field_validator("system", "tools", mode="before")
    @classmethod
    def _clean_list(cls, value: Any) -> Any:
        is_list = isinstance(value, list)
        return [_clean(item) for item in value] if is_list else value

    @field_validator("tool_choice", "thinking", "output_config", mode="before")
    @classmethod
    def _clean_object(cls, value: Any) -> Any:
        return _clean(value)

    def check(self) -> None:
        super().check()
        last = len(self.messages) - 1
        if has_calls(self.messages[last]):
            where = f"messages.{last}"
            raise BadRequest(f"{where}: results of its calls must follow", where)

    def chat(self, variables: Collection[str], has_thoughts: bool) -> Chat:
        """`variables`: that the model's chat template uses; `has_thoughts`: whether it knows any.
        Raises BadRequest.
        """
        thinking = self.thinking.in_chat(variables, has_thoughts) if self.thinking else {}
        output = self.output_config.in_chat(variables) if self.output_config else {}
        values = {**self._values(), **thinking, **output}
        with renaming({"response_format": FORMAT}):
            return validate(MessagesChat, values)

    def _values(self) -> dict[str, Any]:
        """The parameters of the chat, but for those that depend on the model."""
        messages = list(to_chat(self.messages))
        if self.system:
            messages.insert(0, {"role": "system", "content": text_of(self.system)})
        return {
            "model": self.model,
            "messages": messages,
            # The API's way to say how the answer begins.
            "continue_final_message": self.messages[-1].role == "assistant",
            **tools_in_chat(self.tools, self.tool_choice),
        }


class MessageRequest(MessagesBody, Generation):
    """Takes, beside Anthropic's parameters, those of all other generations by their names."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        **MessagesBody.neutral,
        "container": (),
        "diagnostics": (),
        "inference_geo": (),
        "service_tier": ("auto", "standard_only"),
    }

    withheld: ClassVar[frozenset[str]] = frozenset(
        {"n", "response_format", "return_progress", "stop", "stream_options", "timings", "user"}
    )

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
        return _clean(value)

    def _values(self) -> dict[str, Any]:
        shared = self.model_fields_set & Generation.model_fields.keys()
        return {
            **{name: getattr(self, name) for name in shared},
            **super()._values(),
            "stop": self.stop_sequences,
            "user": self.metadata and self.metadata.user_id,
        }


def message(body: dict[str, Any]) -> MessageRequest:
    """Raises BadRequest."""
    return validate(MessageRequest, body)


def count(body: dict[str, Any]) -> MessagesBody:
    """Raises BadRequest."""
    return validate(MessagesBody, body)


def _clean(value: Any) -> Any:
    return without_nulls(value) if isinstance(value, dict) else value
