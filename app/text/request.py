"""What a request for one prompt's continuation asks for. Pure."""

from collections.abc import Mapping

from pydantic import ConfigDict, Field

from app.parameters import Generation
from app.validation import Finite


class Text(Generation):
    """One prompt. Without `max_tokens` the server's own default holds."""

    prompt: str = Field(min_length=1, description="The text to continue.")
    parse_special: bool = Field(
        False,
        description="Whether special tokens that the prompt spells out count as such; else they"
        " are the characters that they are.",
    )

    @property
    def names(self) -> dict[str, str]:
        ours = self.names_of_fields()
        return ours | {name: ours.get(field, field) for name, field in super().names.items()}


def called(names: Mapping[str, str]) -> ConfigDict:
    """Has a format's own `names` for fields of `Generation`: {field: name}."""
    return ConfigDict(**Finite, alias_generator=lambda field: names.get(field, field))
