"""Request bodies of Anthropic's API, and their conversion to chats in OpenAI's format. Pure."""

from collections.abc import Set
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, field_validator

from switchyard.app.chat.request import MAX_MESSAGES, Chat
from switchyard.app.chat.thinking import HowToThink
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
from switchyard.app.request.names import Called
from switchyard.app.request.neutral import ANY, Table
from switchyard.app.request.validation import Finite, known_by, renaming, validate, without_nulls


class Metadata(BaseModel):
    model_config = Finite

    user_id: str | None = Field(None, description="Written to the server's log at level DEBUG.")


class OutputFormat(BaseModel):
    model_config = Finite

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(BaseModel):
    model_config = Finite

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        None,
        description="Passed to the model's chat template. If the template doesn't use it, the"
        " response says so.",
    )

    format: OutputFormat | None = Field(
        None, description="The answer is JSON that matches its `schema`."
    )

    @field_validator("format", mode="before")
    @classmethod
    def _clean_format(cls, value: Any) -> Any:
        return _clean(value)

    def in_chat(self) -> dict[str, Any]:
        form = self.format and {"type": "json_schema", "schema": self.format.schema_}
        return {
            "reasoning_effort": "xhigh" if self.effort == "max" else self.effort,
            "response_format": form,
        }


FORMAT = "output_config.format"
PLACES = {"reasoning_effort": "output_config.effort", "response_format": FORMAT}
BILLING = "x-anthropic-billing-header:"  # begins a block of Claude Code's system prompt


class MessagesChat(Chat):
    @property
    def names(self) -> dict[str, str]:
        names = super().names
        places = {**PLACES, **self.said_names}
        if names["constraint"] == "response_format":
            names["constraint"] = places["response_format"]
        return {
            **names,
            "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
            "reasoning_budget": "thinking.budget_tokens",
            **places,
        }


class MessagesBody(HowToThink):
    """The parameters that messages and token counts share."""

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
        description="Messages with the roles `user`, `assistant` and `system`. Each is a string,"
        " or blocks of type `text`, `thinking`, `tool_use` and `tool_result`; at"
        " most 10,000 blocks. Consecutive messages with the same role form one turn."
        " If the last message is the assistant's, the answer continues it.",
    )
    system: Content[TextBlock] | None = Field(
        None, description="The system prompt, before the conversation."
    )
    cache_control: CacheControl | None = Field(
        None,
        description="Has no effect, here and in blocks: the prefix cache keeps every prefix as"
        " long as there is room.",
    )

    tools: list[AnthropicTool] = Field(
        default=[],
        max_length=MAX_TOOLS,
        fail_fast=True,
        description="Functions that the model may call. Tools that need Anthropic's servers or"
        " models are left out; the response says so. A tool with `defer_loading` is left out until"
        " a `tool_reference` names it.",
    )

    tool_choice: ToolChoice | None = Field(
        None,
        description="Whether to call tools, and which ones. Refused without tools, except for"
        " `none` and `auto`.",
    )
    thinking: Thinking | None = Field(None, description="Whether to think before the answer.")
    output_config: OutputConfig | None = Field(
        None, description="The effort and the form of the answer."
    )

    @classmethod
    def settle(cls, given: dict[str, Any]) -> dict[str, Any]:
        if "thread" in given:  # its client leaves out earlier messages, so they would be lost
            raise BadRequest(
                "thread is not supported: send the whole conversation",
                "thread",
                "unsupported_parameter",
                {"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
            )
        return super().settle(given)

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
            raise BadRequest(f"{where}: the results of its calls must follow", where)

    def chat(self, variables: Set[str], has_thoughts: bool) -> Chat:
        """The request as a chat. Raises BadRequest.

        `variables`: the variables that the model's chat template uses. `has_thoughts`: whether the
        template has tags for thoughts.
        """
        thinking = self.thinking.in_chat(variables, has_thoughts) if self.thinking else {}
        output = self.output_config.in_chat() if self.output_config else {}
        values = {**self._values(), **self.beside(output, PLACES), **self._beside(thinking)}
        with renaming({**PLACES, **{name: name for name in self.model_fields_set}}):
            return validate(MessagesChat, values).said_as(self)

    def _beside(self, thinking: dict[str, Any]) -> dict[str, Any]:
        """The parameters for thinking: `thinking`, combined with the other parameters that request
        thoughts. Raises BadRequest if these parameters contradict each other.
        """
        if self.thinking is None:
            return {}
        asked, switches = self.chat_template_kwargs, thinking["chat_template_kwargs"]
        budgets = {self.reasoning_budget, thinking["reasoning_budget"]} - {None}
        ways = {
            "enable_thinking": self.enable_thinking == (self.thinking.type == "disabled"),
            "chat_template_kwargs": any(asked.get(name, on) != on for name, on in switches.items()),
            "reasoning_budget": len(budgets) > 1,
        }
        for name, differs in ways.items():
            if differs:
                raise BadRequest(f"thinking and {name} contradict each other", name)
        merged = {"chat_template_kwargs": {**asked, **switches}}
        return {**thinking, **merged, "reasoning_budget": max(budgets, default=None)}

    def _values(self) -> dict[str, Any]:
        """The parameters of the chat that don't depend on the model."""
        messages = list(to_chat(self.messages))
        if system := self._system():
            messages.insert(0, {"role": "system", "content": system})
        return {
            "model": self.model,
            "messages": messages,
            **self.thinking_given,
            # In this API, if the assistant's message is last, it is the beginning of the answer.
            "continue_final_message": self.messages[-1].role == "assistant",
            **tools_in_chat(self.tools, self.tool_choice, referenced(self.messages)),
        }

    def _system(self) -> str:
        """The system prompt, without the client's billing block.

        That block changes in each turn, so the prefix cache would miss all text after the block.
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
    """Accepts Anthropic's parameters, and the parameters common to all generations under their
    usual names.
    """

    neutral: ClassVar[Table] = {
        **Generation.neutral,
        **MessagesBody.neutral,
        "container": (),
        "diagnostics": ANY,
        "service_tier": ("auto", "standard_only"),
    }

    withheld: ClassVar[frozenset[str]] = frozenset(
        {"n", "return_progress", "stop", "stream_options", "timings"}
        | {"timings_per_token", "user"}
    )

    max_tokens: Tokens = Field(description="Maximum number of new tokens, within the context.")
    stop_sequences: Annotated[list[StopString], Called(others=("stop",))] = Field(
        default=[],
        max_length=16,
        fail_fast=True,
        description="The text ends before the first occurrence of any of these strings.",
    )
    metadata: Metadata | None = Field(None, description="Identifies the end user.")

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
    """Parses a request for a message from its JSON body. Raises BadRequest."""
    return validate(MessageRequest, body)


def count(body: dict[str, Any]) -> MessagesBody:
    """Parses a token-counting request. The request accepts all parameters of a message; the
    response lists those that have no effect on the count. Raises BadRequest.
    """
    others = known_by(MessageRequest) - known_by(MessagesBody)
    for name in body.keys() & others:
        neutral.note(name)
        body = {key: value for key, value in body.items() if key != name}
    return validate(MessagesBody, body)


def _clean(value: Any) -> Any:
    return without_nulls(value) if isinstance(value, dict) else value
