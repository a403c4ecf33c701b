"""Tools that a chat offers the model, and which it may or must call. Pure."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from switchyard.app.exceptions import BadRequest
from switchyard.app.request.neutral import ANY, Table
from switchyard.app.request.validation import TAG, Object

MAX_TOOLS = 512

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:/@-]{1,128}$")]
NAME = "Letters, digits, `_`, `.`, `-`; also `:`, `/`, `@`, for which models are shown `_`."


def shown_name(name: str) -> str:
    """What the model is shown of the name of a tool: call formats have room for no more."""
    return name.translate(_SHOWN)


_SHOWN = str.maketrans(dict.fromkeys(":/@", "_"))


class Function(Object):
    name: Name = Field(description=f"{NAME} Refused if two have it.")
    description: str | None = Field(None, description="What it is good for, for the model.")
    parameters: dict[str, Any] | None = Field(
        None, description="The JSON schema of its arguments, an object. Default: it has none."
    )
    strict: bool | None = Field(
        None,
        description="Its calls are valid by the schema; refused if that can't be enforced. Else"
        " they are if one must be made, as far as it can.",
    )

    @property
    def schema_of_arguments(self) -> dict[str, Any]:
        return self.parameters or {"type": "object", "properties": {}}


class Tool(Object):
    place: ClassVar[str] = "tools"
    neutral: ClassVar[Table] = {"cache_control": ANY}

    type: Literal["function"] = Field(description="Others are refused.")
    function: Function = Field(description="What may be called.")

    def template_form(self) -> dict[str, Any]:
        """As Hugging Face's chat templates take it."""
        return {
            "type": "function",
            "function": {
                "name": shown_name(self.function.name),
                "description": self.function.description or "",
                "parameters": self.function.schema_of_arguments,
            },
        }


class NamedFunction(Object):
    name: Name = Field(description="Of one of the tools.")


class NamedTool(Object):
    type: Literal["function"] = Field(description="Others are refused.")
    function: NamedFunction = Field(description="Which.")


class AllowedTools(Object):
    mode: Literal["auto", "required"] = Field(description="As `tool_choice` in other cases.")
    tools: list[NamedTool] = Field(
        min_length=1, max_length=MAX_TOOLS, description="The only ones that the model is shown."
    )


class Allowed(Object):
    type: Literal["allowed_tools"] = Field(description="Says what it is.")
    allowed_tools: AllowedTools = Field(description="Which, and what to make of them.")


def _kind(value: Any) -> str:
    if not isinstance(value, dict):
        return f"{TAG}mode"
    return f"{TAG}allowed" if value.get("type") == "allowed_tools" else f"{TAG}named"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag(f"{TAG}mode")]
    | Annotated[NamedTool, Tag(f"{TAG}named")]
    | Annotated[Allowed, Tag(f"{TAG}allowed")],
    Discriminator(_kind),
]


@dataclass(frozen=True, slots=True)
class Offer:
    """Tools that the model is shown, and what it must make of them."""

    tools: tuple[Tool, ...]
    must_call: bool = False
    only: str | None = None  # the one that it must call
    max_calls: int | None = None

    @property
    def names(self) -> dict[str, str]:
        """As the model writes them, and as the client does."""
        names = (tool.function.name for tool in self.tools)
        return {shown_name(name): name for name in names}


def offer(tools: list[Tool], choice: ToolChoice | None, is_parallel: bool) -> Offer:
    """Raises BadRequest for a choice of tools that are not there."""
    names = [tool.function.name for tool in tools]
    shown = [shown_name(name) for name in names]
    if twice := next((name for name in shown if shown.count(name) > 1), None):
        raise BadRequest(f"tools: two have the name {twice}", "tools")
    max_calls = None if is_parallel else 1
    match choice:
        case "none":
            return Offer(())
        case "required":
            _check_known([], names)
            return Offer(tuple(tools), must_call=True, max_calls=max_calls)
        case NamedTool(function=NamedFunction(name=name)):
            _check_known([name], names)
            return Offer(tuple(tools), must_call=True, only=name, max_calls=1)
        case Allowed(allowed_tools=allowed):
            wanted = [tool.function.name for tool in allowed.tools]
            _check_known(wanted, names)
            chosen = tuple(tool for tool in tools if tool.function.name in wanted)
            return Offer(chosen, must_call=allowed.mode == "required", max_calls=max_calls)
    return Offer(tuple(tools), max_calls=max_calls)


def _check_known(wanted: list[str], names: list[str]) -> None:
    if not names:
        raise BadRequest("tool_choice needs tools", "tool_choice")
    if unknown := next((name for name in wanted if name not in names), None):
        raise BadRequest(f"tool_choice: no tool has the name {unknown}", "tool_choice")
