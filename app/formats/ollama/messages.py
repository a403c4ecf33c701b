"""Messages of Ollama's API, which are chat messages with arguments as objects. Pure."""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic_core import to_json

from switchyard.app.chat.messages import CalledFunction, CalledTool, Message
from switchyard.app.request.neutral import ANY, Table
from switchyard.app.request.validation import Finite

_NAMES = {"reasoning_content": "thinking", "name": "tool_name"}


def _text_of(value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError("must be an object")
    return to_json(value).decode()


class OllamaFunction(CalledFunction):
    place: ClassVar[str] = "messages.tool_calls.function"
    neutral: ClassVar[Table] = {"index": ANY, "description": ANY}

    arguments: Annotated[str, BeforeValidator(_text_of, json_schema_input_type=dict[str, Any])] = (
        Field(description="The arguments, as an object.")
    )


class OllamaCall(CalledTool):
    id: str = Field("", description="An id to which a result of the call may refer.")
    function: OllamaFunction = Field(description="The called function.")


class OllamaMessage(Message):
    model_config = ConfigDict(**Finite, alias_generator=lambda field: _NAMES.get(field, field))

    content: str = Field("", description="The text.")
    name: str | None = Field(None, description="For a result: the name of the function.")
    reasoning_content: str | None = Field(
        None, description="Thoughts of the assistant, for chat templates that use them."
    )
    tool_calls: list[OllamaCall] = Field(  # type: ignore[assignment]
        default=[],
        fail_fast=True,
        description="Calls that the assistant has made. Refused in messages with other roles.",
    )
    tool_call_id: str | None = Field(
        None,
        description="For a result: the id of its call. Without an id, the result belongs to the"
        " first call with this `tool_name` that has no result yet, or else to the first call"
        " without a result.",
    )


def with_ids(messages: Sequence[OllamaMessage]) -> Iterator[OllamaMessage]:
    """The messages, completed so that each call has an id, and each result has the id of its
    call.
    """
    number = 0
    calls = _OpenCalls([])
    for message in messages:
        update: dict[str, Any] = {}
        if message.tool_calls:
            named = []
            for call in message.tool_calls:
                number += 1
                named.append(call.model_copy(update={"id": call.id or f"call_{number}"}))
            calls = _OpenCalls(named)
            update = {"tool_calls": named, "content": message.content or None}
        elif message.role == "tool":
            update = {"tool_call_id": calls.answer(message.tool_call_id, message.name)}
        yield message.model_copy(update=update)


class _OpenCalls:
    """The calls of one message that have no result yet."""

    def __init__(self, calls: Sequence[OllamaCall]) -> None:
        self._open = {call.id for call in calls}
        self._in_order = deque(call.id for call in calls)
        self._by_name: dict[str, deque[str]] = defaultdict(deque)
        for call in calls:
            self._by_name[call.function.name].append(call.id)

    def answer(self, identifier: str | None, name: str | None) -> str:
        """The id of the call to which a result with this id and name belongs."""
        found = identifier or self._first(self._by_name[name or ""]) or self._first(self._in_order)
        self._open.discard(found or "")
        return found or "call_0"

    def _first(self, ids: deque[str]) -> str | None:
        while ids:
            if (identifier := ids.popleft()) in self._open:
                return identifier
        return None
