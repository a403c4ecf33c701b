"""Client messages on a WebSocket. Pure."""

from typing import Any, ClassVar, Literal

import pydantic_core
from pydantic import Field

from switchyard.app.chat.request import Chat
from switchyard.app.exceptions import BadRequest
from switchyard.app.formats.text.request import OneText
from switchyard.app.http.body import check_values
from switchyard.app.request.neutral import RUNNING, SCORES
from switchyard.app.request.validation import Parameters, validate

Identifier = int | str

_SETTLED: dict[str, tuple[Any, ...]] = {  # the only values that a WebSocket supports
    "n": (1,),
    "return_progress": (False,),
    "stream": (True,),
    "timings": (False,),
}


class SpokenText(OneText):
    withheld: ClassVar[frozenset[str]] = OneText.withheld | RUNNING.keys()
    settled: ClassVar[dict[str, tuple[Any, ...]]] = _SETTLED


class SpokenChat(Chat):
    withheld: ClassVar[frozenset[str]] = Chat.withheld | RUNNING.keys() | SCORES.keys()
    settled: ClassVar[dict[str, tuple[Any, ...]]] = {
        **_SETTLED,
        "logprobs": (False,),
        "top_logprobs": (0,),
    }


class Envelope(Parameters):
    kinds: ClassVar[dict[str, str]] = {"id": "must be a number, or a string of 1 to 100 characters"}

    type: Literal["generate", "cancel"]
    id: int | str = Field(union_mode="left_to_right")

    def check(self) -> None:
        if isinstance(self.id, str) and not 1 <= len(self.id) <= 100:
            raise BadRequest(f"id {self.kinds['id']}", "id")


def message(data: str | bytes, max_bytes: int) -> dict[str, Any]:
    """The JSON object in a message. `max_bytes`: the limit on a body's size. Raises BadRequest."""
    if isinstance(data, bytes):
        raise BadRequest("messages must be text, not binary", None, "invalid_json")
    check_values(data.encode(), max_bytes)
    try:
        value = pydantic_core.from_json(data, allow_inf_nan=True, cache_strings="none")
    except ValueError as reason:
        raise BadRequest(f"not valid JSON: {reason}", None, "invalid_json") from None
    if not isinstance(value, dict):
        raise BadRequest("a message must be a JSON object", None, "invalid_json")
    return value


def envelope(value: dict[str, Any]) -> Envelope:
    """The type and id of a message. Raises BadRequest."""
    if value.get("type") != "cancel":  # messages of other types also contain parameters
        value = {name: value[name] for name in ("type", "id") if name in value}
    return validate(Envelope, value)


def generate(value: dict[str, Any]) -> SpokenText | SpokenChat:
    """The request in a message of type `generate`. Raises BadRequest."""
    parameters = {name: item for name, item in value.items() if name not in ("type", "id")}
    if parameters.get("messages") is None:
        return validate(SpokenText, parameters)
    if parameters.get("prompt") is not None:
        raise BadRequest("give prompt or messages, not both", "prompt")
    return validate(SpokenChat, parameters)
