"""Parameters of requests with text prompts, and other servers' names for them. Pure."""

import abc
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

from pydantic import ConfigDict, Field

from switchyard import engine
from switchyard.app.request.generation import Generation
from switchyard.app.request.names import Server, names_of
from switchyard.app.request.prompt_tokens import PromptTokens
from switchyard.app.request.validation import Finite


class TextRequest(Generation):
    """A request with text prompts. Without `max_tokens`, the server's default applies."""

    # Answers always contain the usage.
    withheld: ClassVar[frozenset[str]] = frozenset({"stream_options"})

    parse_special: bool = Field(
        False,
        description="Whether to recognize special tokens that the prompt spells out, instead of"
        " reading plain characters.",
    )

    @property
    def names(self) -> dict[str, str]:
        ours = self.names_of_fields()
        return {**ours, **{name: ours.get(field, field) for name, field in super().names.items()}}

    @property
    def num_prompts(self) -> int:
        return 1

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """The number of characters in all prompts; a token id counts as 4."""

    @abc.abstractmethod
    def read(self, tokenizer: engine.Tokenizer, max_tokens: int) -> list[PromptTokens]:
        """The prompts, of at most `max_tokens` tokens. Raises PromptTooLong, BadRequest."""


class OneText(TextRequest):
    prompt: str = Field(min_length=1, description="The text to continue.")

    @property
    def size(self) -> int:
        return len(self.prompt)

    def read(self, tokenizer: engine.Tokenizer, max_tokens: int) -> list[PromptTokens]:
        token_ids = tokenizer.encode(self.prompt, max_tokens, parse_special=self.parse_special)
        return [PromptTokens(token_ids)]


_PARSE_SPECIAL = "As in `/generate`; these clients apply the model's template themselves."
WINDOW = "Number of most recent tokens to which the sampler applies. -1: all. 0: off."


class Switch(NamedTuple):
    """A sampler's main parameter. If the parameter has the value `off`, the `others` have no
    effect.
    """

    name: str
    off: float
    others: tuple[str, ...]
    window: str | None = None  # one of `others`: a window of 0 tokens also turns the sampler off
    is_setting: bool = False  # whether the default is a setting instead of `off`


class OtherServers(TextRequest):
    """A request that uses other servers' names for parameters."""

    switches: ClassVar[tuple[Switch, ...]] = ()

    parse_special: bool = Field(True, description=_PARSE_SPECIAL)
    dry_range: int = Field(-1, ge=-1, lt=2**31, description=WINDOW)

    @classmethod
    def settle(cls, given: dict[str, Any]) -> dict[str, Any]:
        """The parameters, without those of inactive samplers, which clients send as well."""
        for switch in cls.switches:
            window = given.get(switch.window) if switch.window else None
            if type(window) is int and window == 0:
                given = {**given, switch.name: switch.off}
        left_out = idle(given, cls.switches)
        return {name: value for name, value in given.items() if name not in left_out}


def called(server: Server) -> ConfigDict:
    """The pydantic configuration that uses the names of `server` for fields of `TextRequest`."""
    names = names_of(TextRequest, server)
    return ConfigDict(**Finite, alias_generator=lambda field: names.get(field, field))


def idle(body: Mapping[str, Any], switches: Iterable[Switch]) -> set[str]:
    """The parameters in `body` that belong to samplers that are off. A preset may turn on a sampler
    that the request doesn't set.
    """
    has_preset = "preset" in body
    off = (
        switch
        for switch in switches
        if body.get(switch.name, None if switch.is_setting or has_preset else switch.off)
        == switch.off
    )
    return {other for switch in off for other in switch.others}
