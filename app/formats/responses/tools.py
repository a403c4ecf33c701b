"""Tools of OpenAI's Responses API, and their conversion to the format that chats use. Pure."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from switchyard.app.chat.tools import MAX_TOOLS, Function, Name
from switchyard.app.request import neutral
from switchyard.app.request.neutral import ANY, Table
from switchyard.app.request.validation import TAG, Finite


class FunctionTool(Function):
    place: ClassVar[str] = "tools"
    neutral: ClassVar[Table] = {"allowed_callers": ANY}

    type: Literal["function"]
    defer_loading: bool | None = Field(
        None, description="True: the model doesn't see the tool; the response says so."
    )


class Namespace(BaseModel):
    """Functions that the model and the client know as `namespace__function`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: Literal["namespace"]
    name: Name
    tools: list[FunctionTool] = Field(max_length=MAX_TOOLS, fail_fast=True)


class HostedTool(BaseModel):
    """A tool that runs on OpenAI's servers, or that only OpenAI's models know."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str = Field(max_length=100, description="Other types are left out; the response says so.")


def _kind_of_tool(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    return f"{TAG}{kind if kind in ('function', 'namespace') else 'hosted'}"


AnyTool = Annotated[
    Annotated[FunctionTool, Tag(f"{TAG}function")]
    | Annotated[Namespace, Tag(f"{TAG}namespace")]
    | Annotated[HostedTool, Tag(f"{TAG}hosted")],
    Discriminator(_kind_of_tool),
]


class ChosenFunction(BaseModel):
    model_config = Finite

    type: Literal["function"]
    name: Name


class AllowedFunctions(BaseModel):
    model_config = Finite

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[ChosenFunction] = Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)


def _kind(value: Any) -> str:
    if not isinstance(value, dict):
        return f"{TAG}mode"
    return f"{TAG}{'allowed' if value.get('type') == 'allowed_tools' else 'function'}"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag(f"{TAG}mode")]
    | Annotated[ChosenFunction, Tag(f"{TAG}function")]
    | Annotated[AllowedFunctions, Tag(f"{TAG}allowed")],
    Discriminator(_kind),
]


def functions(tools: Sequence[AnyTool]) -> Iterator[dict[str, Any]]:
    """The functions in the format that chats use. The response lists the tools that the model
    doesn't see.
    """
    for i, tool in enumerate(tools):
        match tool:
            case Namespace(name=name, tools=inner):
                for one in inner:
                    yield _function(one, f"{name}__{one.name}")
            case FunctionTool(defer_loading=None | False):
                yield _function(tool, tool.name)
            case _:
                neutral.note(f"tools[{i}]")


def _function(tool: FunctionTool, name: str) -> dict[str, Any]:
    function = tool.model_dump(exclude={"type", "defer_loading"}, exclude_none=True)
    return {"type": "function", "function": {**function, "name": name}}


def choice_in_chat(choice: ToolChoice) -> Any:
    match choice:
        case ChosenFunction(name=name):
            return {"type": "function", "function": {"name": name}}
        case AllowedFunctions(mode=mode, tools=tools):
            allowed = [{"type": "function", "function": {"name": tool.name}} for tool in tools]
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed}}
    return choice
