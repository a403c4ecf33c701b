"""The tools of a chat, and the choice of tools that the model may or must call. Pure."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from switchyard.app.chat.tool_schema import ToolSchema
from switchyard.app.exceptions import BadRequest
from switchyard.app.request.neutral import ANY, Table
from switchyard.app.request.validation import TAG, Object

MAX_TOOLS = 512

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:/@-]{1,128}$")]
NAME = "Letters, digits, `_`, `.`, `-`, and also `:`, `/`, `@`, which the model sees as `_`."


def shown_name(name: str) -> str:
    """The name of a tool as the model sees it. Call formats don't allow `:`, `/` or `@` in a
    name.
    """
    return name.translate(_SHOWN)


_SHOWN = str.maketrans(dict.fromkeys(":/@", "_"))


class Function(Object):
    name: Name = Field(description=f"{NAME} Refused if two tools have the same name.")
    description: str | None = Field(None, description="The tool's purpose, for the model.")
    parameters: ToolSchema | None = Field(
        None,
        description="The JSON schema of the arguments object. Default: no arguments. A `type`"
        " that JSON Schema doesn't define is refused.",
    )
    strict: bool | None = Field(
        None,
        description="True: calls match the schema; refused if the schema can't be enforced."
        " Otherwise the schema is enforced where possible if a call is required or"
        " the output has a form.",
    )

    @property
    def schema_of_arguments(self) -> dict[str, Any]:
        return self.parameters or {"type": "object", "properties": {}}


class Tool(Object):
    place: ClassVar[str] = "tools"
    neutral: ClassVar[Table] = {"cache_control": ANY}

    type: Literal["function"] = Field(description="Other types are refused.")
    function: Function = Field(description="The function.")

    def template_form(self) -> dict[str, Any]:
        """The tool in the format that Hugging Face's chat templates use."""
        return {
            "type": "function",
            "function": {
                "name": shown_name(self.function.name),
                "description": self.function.description or "",
                "parameters": self.function.schema_of_arguments,
            },
        }


class NamedFunction(Object):
    name: Name = Field(description="The name of one of the tools.")


class NamedTool(Object):
    type: Literal["function"] = Field(description="Other types are refused.")
    function: NamedFunction = Field(description="The tool to call.")


class AllowedTools(Object):
    mode: Literal["auto", "required"] = Field(description="As in `tool_choice`.")
    tools: list[NamedTool] = Field(
        min_length=1, max_length=MAX_TOOLS, description="The only tools shown to the model."
    )


class Allowed(Object):
    type: Literal["allowed_tools"] = Field(description="Indicates a choice among several tools.")
    allowed_tools: AllowedTools = Field(description="The tools, and whether a call is required.")


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
    """The tools shown to the model, and the calls that the model must make."""

    tools: tuple[Tool, ...]
    must_call: bool = False
    only: str | None = None  # the tool that the model must call
    max_calls: int | None = None

    @property
    def names(self) -> dict[str, str]:
        """The client's names for the tools, keyed by the names that the model sees."""
        names = (tool.function.name for tool in self.tools)
        return {shown_name(name): name for name in names}


def offer(tools: list[Tool], choice: ToolChoice | None, is_parallel: bool) -> Offer:
    """The `Offer` of a request. Raises BadRequest if the choice names a tool that the request
    doesn't define.
    """
    names = [tool.function.name for tool in tools]
    shown = [shown_name(name) for name in names]
    if twice := next((name for name in shown if shown.count(name) > 1), None):
        raise BadRequest(f"tools: two tools have the name {twice}", "tools")
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
