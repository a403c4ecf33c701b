"""Tools and thinking in Anthropic's API, and their conversion to a chat. Pure."""

from collections.abc import Collection, Sequence, Set
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from switchyard.app.chat.request import SWITCHES
from switchyard.app.chat.tool_schema import ToolSchema
from switchyard.app.chat.tools import NAME, Name
from switchyard.app.formats.anthropic.content import CacheControl
from switchyard.app.request import neutral
from switchyard.app.request.neutral import ANY, Table
from switchyard.app.request.validation import TAG, Finite, Object


class OwnTool(Object):
    """A tool that the client runs."""

    place: ClassVar[str] = "tools"
    neutral: ClassVar[Table] = {"input_examples": ANY}

    type: Literal["custom"] = Field(
        "custom", description="Other types are left out; the response says so."
    )
    name: Name = Field(description=f"{NAME} Refused if two tools have the same name.")
    description: str | None = Field(None, description="The tool's purpose, for the model.")
    input_schema: ToolSchema = Field(
        description="The JSON schema of the input object. A `type` that JSON Schema doesn't"
        " define is refused."
    )
    strict: bool | None = Field(
        None, description="True: the tool's input matches the schema, even if no call is required."
    )
    cache_control: CacheControl | None = None
    # No effect, because input is always streamed immediately.
    eager_input_streaming: bool | None = None
    defer_loading: bool = Field(
        False, description="The model doesn't see the tool until a `tool_reference` names it."
    )
    allowed_callers: list[str] | None = Field(
        None,
        max_length=16,
        description="The model sees the tool only if this list includes `direct`.",
    )

    def is_shown(self, referenced: Collection[str]) -> bool:
        """Whether the model sees the tool. `referenced`: tools that the conversation refers to."""
        is_found = not self.defer_loading or self.name in referenced
        return is_found and (self.allowed_callers is None or "direct" in self.allowed_callers)

    def in_chat(self) -> dict[str, Any]:
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.input_schema,
            "strict": self.strict,
        }
        given = {name: value for name, value in function.items() if value is not None}
        return {"type": "function", "function": given}


class OtherTool(BaseModel):
    """A tool that runs on Anthropic's servers, or that only Anthropic's models know."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str = Field(
        max_length=100, description="Types other than `custom` are left out; the response says so."
    )


AnthropicTool = Annotated[
    Annotated[OwnTool, Tag(f"{TAG}own")] | Annotated[OtherTool, Tag(f"{TAG}other")],
    Discriminator(
        lambda value: (
            f"{TAG}other"
            if isinstance(value, dict) and value.get("type", "custom") != "custom"
            else f"{TAG}own"
        )
    ),
]


class ToolChoice(BaseModel):
    model_config = Finite

    type: Literal["auto", "any", "tool", "none"] = Field(
        description="`none`: the model doesn't see the tools; `auto`: it may call some; `any`: it"
        " must call at least one; `tool`: it must call the named one."
    )
    name: Name | None = Field(
        None, description="The name of one of the tools. Only for type `tool`."
    )
    disable_parallel_tool_use: bool = Field(
        False,
        description="The answer ends with its first tool call. If the model's chat template"
        " allows one call per message, true is the default; the response says so.",
    )

    @model_validator(mode="after")
    def _has_name(self) -> "ToolChoice":
        if (self.name is None) == (self.type == "tool"):
            raise ValueError("name is required with type tool, and not allowed otherwise")
        return self

    def in_chat(self) -> dict[str, Any]:
        choice: Any = {"auto": "auto", "any": "required", "none": "none"}.get(self.type)
        if choice is None:
            choice = {"type": "function", "function": {"name": self.name}}
        if "disable_parallel_tool_use" not in self.model_fields_set:
            return {"tool_choice": choice}
        return {"tool_choice": choice, "parallel_tool_calls": not self.disable_parallel_tool_use}


class Thinking(BaseModel):
    model_config = Finite

    type: Literal["enabled", "disabled", "adaptive"] = Field(
        description="`disabled`: no thoughts. Without this parameter the model decides."
    )
    budget_tokens: int | None = Field(
        None,
        ge=1,
        lt=2**31,
        description="After this number of tokens, the server ends the thoughts. Only for"
        " type `enabled`, which requires this member. Has no effect if the chat template has no"
        " thoughts.",
    )
    display: Literal["summarized", "updates", "omitted"] | None = Field(
        None, description="`omitted`: no thoughts in the answer. Otherwise they are complete."
    )

    @model_validator(mode="after")
    def _has_budget(self) -> "Thinking":
        if (self.budget_tokens is None) == (self.type == "enabled"):
            raise ValueError(
                "budget_tokens is required with type enabled, and not allowed otherwise"
            )
        return self

    def in_chat(self, variables: Set[str], has_thoughts: bool) -> dict[str, Any]:
        """The parameters of the chat. `variables`, `has_thoughts`: as in `MessagesBody.chat`."""
        is_disabled = self.type == "disabled"
        if not is_disabled and not has_thoughts and not SWITCHES & variables:
            neutral.note("thinking")
        switches = {name: not is_disabled for name in SWITCHES if name in variables}
        budget = self.budget_tokens
        if is_disabled and not switches:
            budget = 0  # thoughts end as soon as they begin
        return {
            "include_reasoning": not is_disabled and self.display != "omitted",
            "chat_template_kwargs": switches,
            "reasoning_budget": budget if has_thoughts else None,
        }


def tools_in_chat(
    tools: Sequence[OwnTool | OtherTool], choice: ToolChoice | None, referenced: Collection[str]
) -> dict[str, Any]:
    """The parameters of the chat. The response lists the tools that the model doesn't see."""
    offered = []
    for i, tool in enumerate(tools):
        if isinstance(tool, OwnTool) and tool.is_shown(referenced):
            offered.append(tool.in_chat())
        else:
            neutral.note(f"tools[{i}]")
    return {"tools": offered, **(choice.in_chat() if choice is not None else {})}
