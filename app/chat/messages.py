"""Messages of a conversation, in OpenAI's format. Pure."""

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from switchyard.app.chat.tools import shown_name
from switchyard.app.request.neutral import ANY, Table
from switchyard.app.request.validation import TAG, Object

_TEXT, _PARTS = f"{TAG}text", f"{TAG}parts"


class TextPart(Object):
    place: ClassVar[str] = "messages.content"
    neutral: ClassVar[Table] = {"cache_control": ANY}

    type: Literal["text"] = Field(description="Other types, including images, are refused.")
    text: str = Field(description="A part of the message.")

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise ValueError(f"parts of type {kind[:100]!r} are not supported; only text is")
        return value


class CalledFunction(Object):
    name: str = Field(description="The name of the function.")
    arguments: str = Field(
        description="The text of a JSON object; an empty string counts as an empty object. Any"
        " other text, such as that of a cut-off call, is passed to the chat template"
        " unchanged."
    )


class CalledTool(Object):
    """A call that the model has made."""

    place: ClassVar[str] = "messages.tool_calls"
    neutral: ClassVar[Table] = {"provider_specific_fields": ANY, "extra_content": ANY}

    id: str = Field(description="The id of the call; its result refers to it.")
    type: Literal["function"] = Field("function", description="Other types are refused.")
    function: CalledFunction = Field(description="The called function.")
    index: int | None = Field(None, description="Has no effect; some clients send it back.")


class Message(Object):
    # Clients send back fields from earlier answers.
    place: ClassVar[str] = "messages"
    neutral: ClassVar[Table] = {
        "annotations": ANY,
        "cache_control": ANY,
        "images": ([],),
        "provider_specific_fields": ANY,
        "reasoning": ANY,
        "reasoning_details": ANY,
        "thinking_blocks": ANY,
    }

    role: Literal["system", "developer", "user", "assistant", "tool"] = Field(
        description="The author. Chat templates that don't know `developer` get `system` instead."
    )
    content: (
        Annotated[
            Annotated[str, Tag(_TEXT)]
            | Annotated[list[TextPart], Field(fail_fast=True), Tag(_PARTS)],
            Discriminator(lambda value: _PARTS if isinstance(value, list) else _TEXT),
        ]
        | None
    ) = Field(
        None,
        description="The text, or parts of it, which are joined. Only the assistant's messages"
        " may omit it.",
    )
    name: str | None = Field(None, description="The author's name, for chat templates that use it.")
    reasoning_content: str | None = Field(
        None,
        description="Thoughts of the assistant, for chat templates that use them. Refused in"
        " messages with other roles.",
    )
    tool_calls: list[CalledTool] = Field(
        default=[],
        fail_fast=True,
        description="Calls that the assistant has made. Refused in messages with other roles.",
    )
    tool_call_id: str | None = Field(
        None,
        description="In a message with role `tool`: the id of the call whose result this is."
        " Refused in messages with other roles.",
    )

    @property
    def text(self) -> str:
        match self.content:
            case None:
                return ""
            case str(text):
                return text
            case parts:
                return "".join(part.text for part in parts)

    def template_form(self) -> dict[str, Any]:
        """The message in the format that Hugging Face's chat templates use, with arguments as an
        object instead of text.
        """
        form: dict[str, Any] = {"role": self.role}
        form["content"] = None if self.content is None and self.tool_calls else self.text
        for name in ("name", "reasoning_content", "tool_call_id"):
            if (value := getattr(self, name)) is not None:
                form[name] = value
        if self.tool_calls:
            form["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": shown_name(call.function.name),
                        "arguments": _arguments(call.function.arguments),
                    },
                }
                for call in self.tool_calls
            ]
        return form


def _arguments(text: str) -> Any:
    """The object in a JSON text. Text that isn't a JSON object, because it was cut off, is returned
    unchanged.
    """
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def fault_of(message: Message) -> tuple[str, str] | None:
    """The first field that isn't valid for the message's role, and the reason. None if all fields
    are valid.
    """
    if message.role != "assistant":
        for name in ("tool_calls", "reasoning_content"):
            if getattr(message, name):
                alias = type(message).model_fields[name].alias
                return alias or name, "is only for messages with role assistant"
    if message.role == "tool":
        if message.tool_call_id is None:
            return "tool_call_id", "is missing"
    elif message.tool_call_id is not None:
        return "tool_call_id", "is only for messages with role tool"
    if message.content is None and message.role != "assistant":
        return "content", "is missing"
    return None
