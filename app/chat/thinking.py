"""Parameters of how a model thinks, which all chats take, whatever their wire format. Pure."""

from typing import Annotated, Any, Self

from pydantic import Field

from switchyard.app.request.names import Called
from switchyard.app.request.validation import Parameters


class HowToThink(Parameters):
    enable_thinking: Annotated[bool | None, Called(others=("think",))] = Field(
        None,
        description="Passed on to the model's chat template, by the template's name for it. A"
        " template without such a switch ignores it; the response says so.",
    )
    reasoning_budget: Annotated[
        int | None,
        Called(others=("reasoning_budget_tokens", "thinking_budget", "thinking_token_budget")),
    ] = Field(
        None,
        ge=0,
        lt=2**31,
        description="Maximum tokens of thoughts: their end is then forced. The prompt then"
        " opens the thoughts, if the chat template leaves that to the model. Refused if the"
        " template closes them in the prompt, or knows none.",
    )
    chat_template_kwargs: Annotated[dict[str, Any], Called(others=("template_vars",))] = Field(
        default={},
        max_length=64,
        description="Variables for the model's chat template. A variable that it doesn't use is"
        " refused, but a switch of thinking is ignored; the response says so.",
    )

    @property
    def thinking_given(self) -> dict[str, Any]:
        """Those of these parameters that the client gives."""
        given = HowToThink.model_fields.keys() & self.model_fields_set
        return {name: getattr(self, name) for name in given}

    @property
    def thinking_names(self) -> dict[str, str]:
        """The client's names of those that it gives."""
        return {name: self._said[name] for name in HowToThink.model_fields if name in self._said}

    def said_as(self, request: "HowToThink") -> Self:
        """This request, with the names by which the client gave these parameters in another."""
        self._said.update({name: request._said.get(name, name) for name in request.thinking_given})
        return self
