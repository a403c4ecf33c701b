"""Messages of Anthropic's API, made of blocks, and their conversion to OpenAI's messages. Pure."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, Discriminator, Field, Tag
from pydantic_core import to_json

from switchyard.app.chat.request import MAX_MESSAGES, MAX_PARTS
from switchyard.app.request import neutral
from switchyard.app.request.neutral import ANY, Table
from switchyard.app.request.validation import TAG, Finite, Object, without_nulls


class CacheControl(Object):
    """Has no effect, because the prefix cache keeps every prefix as long as there is room."""

    place: ClassVar[str] = "cache_control"
    neutral: ClassVar[Table] = {"scope": ANY}

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class ContentBlock(BaseModel):
    model_config = Finite

    cache_control: CacheControl | None = None


class TextBlock(ContentBlock):
    type: Literal["text"]
    text: str


class ThinkingBlock(BaseModel):
    model_config = Finite

    type: Literal["thinking"]
    thinking: str
    signature: str = ""  # not checked, because nothing depends on who wrote the thoughts


class ToolCaller(Object):
    type: Literal["direct"]


class ToolUseBlock(ContentBlock):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: ToolCaller | None = None


def _by(field: str, values: Sequence[str], kind: str) -> Discriminator:
    return Discriminator(
        lambda value: f"{TAG}{value.get(field) if isinstance(value, dict) else None}",
        custom_error_type=f"unknown_{kind}",
        custom_error_message=f"must be a {kind} of {field} {', '.join(values)}",
    )


Item = TypeVar("Item")
_STRING, _LIST = f"{TAG}string", f"{TAG}list"
Content = Annotated[
    Annotated[str, Tag(_STRING)] | Annotated[list[Item], Field(fail_fast=True), Tag(_LIST)],
    Discriminator(lambda value: _LIST if isinstance(value, list) else _STRING),
]


class ToolReference(ContentBlock):
    """A reference to a tool with `defer_loading` that a search has found."""

    type: Literal["tool_reference"]
    tool_name: str

    @property
    def text(self) -> str:
        return f"The tool {self.tool_name} can be called now."


class ResultImage(ContentBlock):
    """An image in a tool's result. The model gets a text in place of the image."""

    type: Literal["image"]
    source: dict[str, Any]

    @property
    def text(self) -> str:
        neutral.note("messages.content.image")
        return UNSEEN


UNSEEN = "(an image, which can't be shown)"

ResultBlock = Annotated[
    Annotated[TextBlock, Tag(f"{TAG}text")]
    | Annotated[ToolReference, Tag(f"{TAG}tool_reference")]
    | Annotated[ResultImage, Tag(f"{TAG}image")],
    _by("type", ["text", "tool_reference", "image"], "block"),
]


class ToolResultBlock(ContentBlock):
    type: Literal["tool_result"]
    tool_use_id: str
    content: Content[ResultBlock] = ""
    is_error: bool = False


UserBlock = Annotated[
    Annotated[TextBlock, Tag(f"{TAG}text")] | Annotated[ToolResultBlock, Tag(f"{TAG}tool_result")],
    _by("type", ["text", "tool_result"], "block"),
]
AssistantBlock = Annotated[
    Annotated[TextBlock, Tag(f"{TAG}text")]
    | Annotated[ThinkingBlock, Tag(f"{TAG}thinking")]
    | Annotated[ToolUseBlock, Tag(f"{TAG}tool_use")],
    _by("type", ["text", "thinking", "tool_use"], "block"),
]


class SystemMessage(Object):
    """A system message. Its `output_config` applies to the turn that it begins."""

    place: ClassVar[str] = "messages"
    neutral: ClassVar[Table] = {
        "output_config": tuple({"effort": e} for e in ("low", "medium", "high", "xhigh", "max"))
    }

    role: Literal["system"]
    content: Content[TextBlock]


class UserMessage(BaseModel):
    model_config = Finite

    role: Literal["user"]
    content: Content[UserBlock]


class AssistantMessage(BaseModel):
    model_config = Finite

    role: Literal["assistant"]
    content: Content[AssistantBlock]


Message = Annotated[
    Annotated[SystemMessage, Tag(f"{TAG}system")]
    | Annotated[UserMessage, Tag(f"{TAG}user")]
    | Annotated[AssistantMessage, Tag(f"{TAG}assistant")],
    _by("role", ["user", "assistant", "system"], "message"),
]


def clean(messages: Any) -> Any:
    """The messages without nulls. Clients send back members such as `"citations": null`.

    Raises ValueError if there are too many messages or blocks, before the messages themselves are
    checked.
    """
    if not isinstance(messages, list):
        return messages
    if len(messages) > MAX_MESSAGES:
        raise ValueError(f"must have at most {MAX_MESSAGES} items")
    cleaned = [_clean(message, "content") for message in messages]
    contents = [message.get("content") for message in cleaned if isinstance(message, dict)]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    results = [block.get("content") for block in blocks if isinstance(block, dict)]
    if len(blocks) + sum(len(r) for r in results if isinstance(r, list)) > MAX_PARTS:
        raise ValueError(f"must have at most {MAX_PARTS} blocks in total")
    return cleaned


def _clean(value: Any, name: str) -> Any:
    """The value without nulls, including nulls inside the items of its list `name`. The input of a
    call is unchanged, because null is a valid value there.
    """
    if not isinstance(value, dict):
        return value
    given = without_nulls(value)
    if isinstance(items := given.get(name), list):
        given[name] = [_clean(item, name) for item in items]
    return given


def has_calls(message: Message) -> bool:
    content = message.content
    return not isinstance(content, str) and any(isinstance(b, ToolUseBlock) for b in content)


def referenced(messages: Sequence[Message]) -> set[str]:
    """The names of the tools that results of calls refer to."""
    results = (b.content for m in messages for b in _blocks(m) if isinstance(b, ToolResultBlock))
    blocks = (block for content in results if not isinstance(content, str) for block in content)
    return {block.tool_name for block in blocks if isinstance(block, ToolReference)}


def text_of(content: str | Sequence[TextBlock | ToolReference | ResultImage]) -> str:
    """The text of the blocks, each on its own line so that the words of two blocks don't run
    together.
    """
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


def to_chat(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    """The conversation as messages in OpenAI's format. Consecutive messages with the same role
    become one message.
    """
    for role, turn in itertools.groupby(messages, key=lambda message: message.role):
        blocks = [block for message in turn for block in _blocks(message)]
        match role:
            case "user":
                yield from _user(blocks)
            case "assistant":
                yield _assistant(blocks)
            case _:
                yield {"role": role, "content": text_of(blocks)}


def _blocks(message: Message) -> Sequence[Any]:
    content = message.content
    return [TextBlock(type="text", text=content)] if isinstance(content, str) else content


def _user(blocks: Sequence[UserBlock]) -> Iterator[dict[str, Any]]:
    """The messages of a user's turn. Each result of a call becomes its own message."""
    for is_result, run in itertools.groupby(blocks, lambda b: isinstance(b, ToolResultBlock)):
        if not is_result:
            texts = [block for block in run if isinstance(block, TextBlock)]
            yield {"role": "user", "content": text_of(texts)}
            continue
        for block in run:
            assert isinstance(block, ToolResultBlock)
            text = text_of(block.content)
            if block.is_error:  # OpenAI's messages have no such flag
                text = f"Error: {text}"
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}


def _assistant(blocks: Sequence[AssistantBlock]) -> dict[str, Any]:
    texts = [block for block in blocks if isinstance(block, TextBlock)]
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {"name": block.name, "arguments": to_json(block.input).decode()},
        }
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    message: dict[str, Any] = {"role": "assistant"}
    if texts or not calls:
        message["content"] = text_of(texts)
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message
