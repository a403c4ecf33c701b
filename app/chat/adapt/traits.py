"""What a chat template accepts, as found by `probe`. Pure."""

import hashlib
from dataclasses import dataclass
from typing import Any

from switchyard.app.chat.adapt.generic import Message, arguments_text
from switchyard.app.parts.call_formats import CallFormat


@dataclass(frozen=True, slots=True)
class Traits:
    """What a chat template accepts. By default, a template accepts everything."""

    no_content: str | None = None  # the content of a message that has only calls
    arguments_are_text: bool = False
    takes_text: bool = False  # accepts arguments as text, for calls that were cut off
    short_identifiers: bool = False  # identifiers of calls must be nine letters and digits
    shows_calls: bool = False
    shows_results: bool = False
    takes_two_calls: bool = True  # accepts two calls in one message
    takes_system: bool = True
    alternates: bool = False  # refuses two consecutive messages from the user
    format: CallFormat | None = None  # the format of calls; None if it is unknown

    def in_form(self, message: Message) -> Message:
        """The message in the format that the template accepts, including its calls or, for a
        result, the identifier of its call.
        """
        if "tool_call_id" in message:
            return {**message, "tool_call_id": self._identifier(message["tool_call_id"])}
        if not message.get("tool_calls"):
            return message
        calls = [
            {
                **call,
                "id": self._identifier(call["id"]),
                "function": {**call["function"], "arguments": self._arguments(call["function"])},
            }
            for call in message["tool_calls"]
        ]
        content = message.get("content")
        content = self.no_content if content is None else content
        return {**message, "content": content, "tool_calls": calls}

    def _arguments(self, function: Message) -> Any:
        arguments = function["arguments"]
        if self.arguments_are_text:
            return arguments_text(arguments)
        is_text = isinstance(arguments, str)
        return {"arguments": arguments} if is_text and not self.takes_text else arguments

    def _identifier(self, identifier: str) -> str:
        """Shortens an identifier to nine letters and digits if the template requires this.
        Identifiers from other models are longer.
        """
        is_short = len(identifier) == 9 and identifier.isascii() and identifier.isalnum()
        if is_short or not self.short_identifiers:
            return identifier
        return hashlib.sha256(identifier.encode()).hexdigest()[:9]
