"""Tools, and how to think, as Anthropic's API asks for them, in words of a chat. Pure."""

from collections.abc import Collection, Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field, model_validator

from switchyard.app.chat.tools import Name
from switchyard.app.formats.anthropic.content import CacheControl
from switchyard.app.request.validation import Finite, Off


class AnthropicTool(BaseModel):
    """Of the client's own: the API's own run on its servers, or are what its models know."""

    model_config = Finite

    type: Literal["custom"] = Field("custom", description="Others are refused.")
    name: Name = Field(description="Letters, digits, `_`, `.` and `-`. Refused if two have it.")
    description: str | None = Field(None, description="What it is good for, for the model.")
    input_schema: dict[str, Any] = Field(description="The JSON schema of its input, an object.")
    strict: bool | None = Field(
        None, description="Its input is valid by the schema, also if the model need not call it."
    )
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None  # it always comes as it is generated
    defer_loading: Off | None = None
    allowed_callers: list[Literal["direct"]] | None = None

    def in_chat(self) -> dict[str, Any]:
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.input_schema,
            "strict": self.strict,
        }
        given = {name: value for name, value in function.items() if value is not None}
        return {"type": "function", "function": given}


class ToolChoice(BaseModel):
    model_config = Finite

    type: Literal["auto", "any", "tool", "none"] = Field(
        description="`none`: the model is not shown the tools; `auto`: it may call some; `any`: it"
        " must; `tool`: it must call the named one."
    )
    name: Name | None = Field(None, description="Of one of the tools. For type `tool` alone.")
    disable_parallel_tool_use: bool = Field(
        False, description="The answer ends with its first call of a tool."
    )

    @model_validator(mode="after")
    def _has_name(self) -> "ToolChoice":
        if (self.name is None) == (self.type == "tool"):
            raise ValueError("a name is for type tool, which needs one")
        return self

    def in_chat(self) -> dict[str, Any]:
        choice: Any = {"auto": "auto", "any": "required", "none": "none"}.get(self.type)
        if choice is None:
            choice = {"type": "function", "function": {"name": self.name}}
        return {"tool_choice": choice, "parallel_tool_calls": not self.disable_parallel_tool_use}


SWITCHES = ("enable_thinking", "thinking")  # as Qwen's, and as DeepSeek's templates call it


class Thinking(BaseModel):
    model_config = Finite

    type: Literal["enabled", "disabled", "adaptive"] = Field(
        description="`disabled`: no thoughts. Without this parameter the model does what it does."
    )
    budget_tokens: int | None = Field(
        None,
        ge=1,
        lt=2**31,
        description="Most tokens of thoughts: then their end is forced. For type `enabled` alone,"
        " which needs it; without effect on models whose chat template knows no thoughts.",
    )
    display: Literal["summarized", "omitted"] | None = Field(
        None, description="`omitted`: no thoughts in the answer. Else they come in full."
    )

    @model_validator(mode="after")
    def _has_budget(self) -> "Thinking":
        if (self.budget_tokens is None) == (self.type == "enabled"):
            raise ValueError("budget_tokens is for type enabled, which needs it")
        return self

    def in_chat(self, variables: Collection[str], has_thoughts: bool) -> dict[str, Any]:
        """`variables`: that the model's chat template uses; `has_thoughts`: if it knows any."""
        is_disabled = self.type == "disabled"
        switches = {name: not is_disabled for name in SWITCHES if name in variables}
        budget = self.budget_tokens
        if is_disabled and not switches:
            budget = 0  # thoughts that end as they begin
        return {
            "include_reasoning": not is_disabled and self.display != "omitted",
            "chat_template_kwargs": switches,
            "reasoning_budget": budget if has_thoughts else None,
        }


def tools_in_chat(tools: Sequence[AnthropicTool], choice: ToolChoice | None) -> dict[str, Any]:
    """Parameters of the chat."""
    offered = {"tools": [tool.in_chat() for tool in tools]}
    return {**offered, **(choice.in_chat() if choice is not None else {})}
