"""Request bodies of Anthropic's API, to chats of OpenAI's shape. Pure."""

from collections.abc import Set
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
    referenced,
    text_of,
    to_chat,
)
from switchyard.app.formats.anthropic.tools import (
    AnthropicTool,
    Thinking,
    ToolChoice,
    tools_in_chat,
)
from switchyard.app.request import neutral
from switchyard.app.request.generation import Generation, ModelName, StopString, Tokens
from switchyard.app.request.neutral import ANY, Table
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
        description="Passed on to the model's chat template. Without effect where that doesn't use"
        " it, and then told.",
    )

    format: OutputFormat | None = Field(
        None, description="The answer is JSON that is valid by the `schema` in it."
    )

    @field_validator("format", mode="before")
    @classmethod
    def _clean_format(cls, value: Any) -> Any:
        return _clean(value)

    def in_chat(self) -> dict[str, Any]:
        schema = {"schema": self.format.schema_} if self.format is not None else None
        form = {"type": "json_schema", "json_schema": schema}
        return {
            "reasoning_effort": "xhigh" if self.effort == "max" else self.effort,
            "response_format": form if schema is not None else None,
        }


FORMAT = "output_config.format"
BILLING = "x-anthropic-billing-header:"  # a block of Claude Code's that begins so


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

    neutral: ClassVar[Table] = {
        "betas": ANY,
        "context_management": ANY,
        "inference_geo": ANY,
        "mcp_servers": ([],),
        "speed": ANY,
        "thread": (),
        "user_profile_id": ANY,
        "workspace_id": ANY,
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
        description="Functions that the model may call. Those that run on Anthropic's servers, or"
        " that only its models know, are left out and told; and so are those with `defer_loading`,"
        " until a `tool_reference` names them.",
    )

    tool_choice: ToolChoice | None = Field(
        None,
        description="Which of the tools to call. Refused without tools, but for `none` and `auto`.",
    )
    thinking: Thinking | None = Field(None, description="Whether to think before the answer.")
    output_config: OutputConfig | None = Field(None, description="What the answer is like.")

    @classmethod
    def settle(cls, given: dict[str, Any]) -> dict[str, Any]:
        if "thread" in given:  # to take it in silence would lose what the client leaves out
            raise BadRequest(
                "thread is not supported: send the whole conversation",
                "thread",
                "unsupported_parameter",
                {"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
            )
        return given

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

    def chat(self, variables: Set[str], has_thoughts: bool) -> Chat:
        """`variables`: that the model's chat template uses; `has_thoughts`: whether it knows any.
        Raises BadRequest.
        """
        thinking = self.thinking.in_chat(variables, has_thoughts) if self.thinking else {}
        output = self.output_config.in_chat() if self.output_config else {}
        values = {**self._values(), **thinking, **output}
        with renaming({"response_format": FORMAT}):
            return validate(MessagesChat, values)

    def _values(self) -> dict[str, Any]:
        """The parameters of the chat, but for those that depend on the model."""
        messages = list(to_chat(self.messages))
        if system := self._system():
            messages.insert(0, {"role": "system", "content": system})
        return {
            "model": self.model,
            "messages": messages,
            # The API's way to say how the answer begins.
            "continue_final_message": self.messages[-1].role == "assistant",
            **tools_in_chat(self.tools, self.tool_choice, referenced(self.messages)),
        }

    def _system(self) -> str:
        """Without the client's accounts, which change in each turn and would have the cache miss
        all that follows.
        """
        if not self.system:
            return ""
        if isinstance(self.system, str):
            return self.system
        if not self.system[0].text.startswith(BILLING):
            return text_of(self.system)
        neutral.note("system[0]")
        return text_of(self.system[1:])


class MessageRequest(MessagesBody, Generation):
    """Takes, beside Anthropic's parameters, those of all other generations by their names."""

    neutral: ClassVar[Table] = {
        **MessagesBody.neutral,
        "container": (),
        "diagnostics": ANY,
        "service_tier": ("auto", "standard_only"),
    }

    withheld: ClassVar[frozenset[str]] = frozenset(
        {"n", "response_format", "return_progress", "stop", "stream_options", "timings", "user"}
    )

    max_tokens: Tokens = Field(description="Most new tokens, and as many as fit the context.")
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
    """Takes what a message takes: what counts for no tokens is told. Raises BadRequest."""
    known = {**MessagesBody.model_fields, **MessagesBody.neutral}
    others = {**MessageRequest.model_fields, **MessageRequest.neutral}.keys() - known.keys()
    for name in body.keys() & others - MessageRequest.withheld:
        neutral.note(name)
        body = {key: value for key, value in body.items() if key != name}
    return validate(MessagesBody, body)


def _clean(value: Any) -> Any:
    return without_nulls(value) if isinstance(value, dict) else value
