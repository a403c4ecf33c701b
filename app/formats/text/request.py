"""What a request for one prompt's continuation asks for. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from pydantic import ConfigDict, Field

from switchyard.app.request.generation import Generation
from switchyard.app.request.names import Server, names_of
from switchyard.app.request.validation import Finite


class TextRequest(Generation):
    """One prompt. Without `max_tokens` the server's own default holds."""

    withheld: ClassVar[frozenset[str]] = frozenset({"stream_options"})  # usage is always told

    prompt: str = Field(min_length=1, description="The text to continue.")
    parse_special: bool = Field(
        False,
        description="Whether special tokens that the prompt spells out count as such; else they"
        " are the characters that they are.",
    )

    @property
    def max_context(self) -> tuple[int, str] | None:
        """Most tokens of prompt and completion that the request wants, and its name for that."""
        return None

    @property
    def names(self) -> dict[str, str]:
        ours = self.names_of_fields()
        return ours | {name: ours.get(field, field) for name, field in super().names.items()}


_PARSE_SPECIAL = "As of `/generate`; here the clients write the model's template themselves."
WINDOW = "Of the newest tokens, so many. -1: all. 0: off."


class OtherServers(TextRequest):
    """As clients of other servers ask."""

    parse_special: bool = Field(True, description=_PARSE_SPECIAL)
    dry_range: int = Field(-1, ge=-1, lt=2**31, description=WINDOW)


def called(server: Server) -> ConfigDict:
    """Has the names that a server has for fields of `TextRequest`."""
    names = names_of(TextRequest, server)
    return ConfigDict(**Finite, alias_generator=lambda field: names.get(field, field))


class Switch(NamedTuple):
    """A parameter that is off at a value; then others ask for nothing, whatever they say."""

    name: str
    off: float
    others: tuple[str, ...]
    window: str | None = None  # that of the others which turns it off by being 0, of no tokens


def idle(body: Mapping[str, Any], switches: Sequence[Switch]) -> set[str]:
    """Names of parameters of samplers that are off."""
    return {other for s in switches if body.get(s.name, s.off) == s.off for other in s.others}


def without_idle(
    body: dict[str, Any], switches: Sequence[Switch], unset: Mapping[str, Any]
) -> dict[str, Any]:
    """Without what clients send along of samplers that are off, and without what has the value that
    stands for none.
    """
    for switch in switches:
        window = body.get(switch.window) if switch.window else None
        if type(window) is int and window == 0:
            body = {**body, switch.name: switch.off}
    left_out = idle(body, switches)
    return {
        name: value
        for name, value in body.items()
        if name not in left_out and not (name in unset and value == unset[name])
    }
