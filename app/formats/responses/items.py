"""Items of OpenAI's Responses API, and their conversion to messages of a chat. Pure."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from switchyard.app.chat.messages import CalledFunction
from switchyard.app.chat.request import MAX_MESSAGES, MAX_PARTS
from switchyard.app.request import neutral
from switchyard.app.request.neutral import ANY, Table
from switchyard.app.request.validation import TAG, Finite, Object, without_nulls

UNSEEN = "(an image, which can't be shown)"

Status = Literal["in_progress", "completed", "incomplete"]


class Item(Object):
    """The base class of all items. Clients copy `id` and `status` from earlier answers. These
    members have no effect.
    """

    place: ClassVar[str] = "input"

    id: str | None = None
    status: Status | None = None


class InputText(BaseModel):
    model_config = Finite

    type: Literal["input_text"]
    text: str


class InputImage(BaseModel):
    """An image in a tool's result. The model gets a text in place of the image."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: Literal["input_image"]

    @property
    def text(self) -> str:
        neutral.note("input.input_image")
        return UNSEEN


class OutputText(BaseModel):
    model_config = Finite

    type: Literal["output_text"]
    text: str
    annotations: list[Any] = Field(default=[], max_length=0)
    logprobs: list[Any] = []


class ReasoningText(BaseModel):
    model_config = Finite

    type: Literal["reasoning_text", "summary_text"]
    text: str


class ItemCaller(BaseModel):
    model_config = Finite

    type: Literal["direct"]


def _by_type(kind: str, *types: str, default: str = "") -> Discriminator:
    def tag(value: Any) -> str:
        return f"{TAG}{value.get('type', default) if isinstance(value, dict) else None}"

    return Discriminator(
        tag,
        custom_error_type=f"unknown_{kind}",
        custom_error_message=f"must be {kind} of type {', '.join(types)}",
    )


TextPart = Annotated[
    Annotated[InputText, Tag(f"{TAG}input_text")] | Annotated[OutputText, Tag(f"{TAG}output_text")],
    _by_type("a part", "input_text", "output_text"),
]
ShownPart = Annotated[
    Annotated[InputText, Tag(f"{TAG}input_text")]
    | Annotated[OutputText, Tag(f"{TAG}output_text")]
    | Annotated[InputImage, Tag(f"{TAG}input_image")],
    _by_type("a part", "input_text", "output_text", "input_image"),
]
Part = TypeVar("Part")
ListOrText = Annotated[
    Annotated[str, Tag(f"{TAG}string")]
    | Annotated[list[Part], Field(fail_fast=True), Tag(f"{TAG}list")],
    Discriminator(lambda value: f"{TAG}list" if isinstance(value, list) else f"{TAG}string"),
]
Content = ListOrText[TextPart]


class MessageItem(Item):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    phase: Literal["commentary", "final_answer"] | None = None


class FunctionCall(Item, CalledFunction):
    type: Literal["function_call"]
    call_id: str
    caller: ItemCaller | None = None


class FunctionCallOutput(Item):
    type: Literal["function_call_output"]
    call_id: str
    output: ListOrText[ShownPart]
    name: str | None = None
    caller: ItemCaller | None = None


class ReasoningItem(Item):
    """Thoughts of an earlier answer. Encrypted content comes from other servers and can't be
    read.
    """

    neutral: ClassVar[Table] = {"encrypted_content": ANY}

    type: Literal["reasoning"]
    summary: list[ReasoningText] = Field(default=[], fail_fast=True)
    content: list[ReasoningText] = Field(default=[], fail_fast=True)


class AdditionalTools(BaseModel):
    """Has no effect, because only the request's `tools` offer tools."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: Literal["additional_tools"]


AnyItem = Annotated[
    Annotated[MessageItem, Tag(f"{TAG}message")]
    | Annotated[FunctionCall, Tag(f"{TAG}function_call")]
    | Annotated[FunctionCallOutput, Tag(f"{TAG}function_call_output")]
    | Annotated[ReasoningItem, Tag(f"{TAG}reasoning")]
    | Annotated[AdditionalTools, Tag(f"{TAG}additional_tools")],
    _by_type(
        "an item",
        "message",
        "function_call",
        "function_call_output",
        "reasoning",
        "additional_tools",
        default="message",
    ),
]


def clean(items: list[Any]) -> list[Any]:
    """The items without nulls. Clients send back members such as `"encrypted_content": null`.

    Raises ValueError if there are too many items or parts, before the items themselves are checked.
    """
    if len(items) > MAX_MESSAGES:
        raise ValueError(f"must have at most {MAX_MESSAGES} items")
    cleaned = [without_nulls(item) if isinstance(item, dict) else item for item in items]
    num_parts = 0
    for item in cleaned:
        for name in ("content", "output", "summary"):
            if isinstance(item, dict) and isinstance(parts := item.get(name), list):
                num_parts += len(parts)
                item[name] = [without_nulls(p) if isinstance(p, dict) else p for p in parts]
    if num_parts > MAX_PARTS:
        raise ValueError(f"must have at most {MAX_PARTS} parts in total")
    return cleaned


def to_chat(items: Sequence[AnyItem]) -> Iterator[dict[str, Any]]:
    """The items as messages of a chat. Consecutive thoughts, text and calls become one message."""
    answer: dict[str, Any] = {}
    for item in items:
        is_answer = isinstance(item, ReasoningItem | FunctionCall) or (
            isinstance(item, MessageItem) and item.role == "assistant"
        )
        begins = isinstance(item, ReasoningItem) or (
            isinstance(item, MessageItem) and "content" in answer
        )
        if answer and (not is_answer or begins):
            yield {"role": "assistant", **answer}
            answer = {}
        match item:
            case AdditionalTools():
                neutral.note("input.additional_tools")
            case ReasoningItem():
                if text := _joined(item.content or item.summary):
                    answer["reasoning_content"] = text
            case FunctionCall():
                function = {"name": item.name, "arguments": item.arguments}
                call = {"id": item.call_id, "type": "function", "function": function}
                answer.setdefault("tool_calls", []).append(call)
            case FunctionCallOutput():
                text = _text(item.output)
                yield {"role": "tool", "tool_call_id": item.call_id, "content": text}
            case MessageItem(role="assistant"):
                answer["content"] = _text(item.content)
            case MessageItem():
                yield {"role": item.role, "content": _text(item.content)}
    if answer:
        yield {"role": "assistant", **answer}


def _text(content: str | Sequence[InputText | OutputText | InputImage]) -> str:
    return content if isinstance(content, str) else _joined(content)


def _joined(parts: Sequence[InputText | OutputText | InputImage | ReasoningText]) -> str:
    return "".join(part.text for part in parts)
