"""Parameters for a model's thinking, which chats of all wire formats accept. Pure."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field

from switchyard.app.exceptions import BadRequest
from switchyard.app.request.names import Called
from switchyard.app.request.validation import Parameters

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class HowToThink(Parameters):
    reasoning_effort: Effort | None = Field(
        None,
        description="Passed to the model's chat template. If the template doesn't use it, the"
        " response says so.",
    )
    enable_thinking: Annotated[bool | None, Called(others=("think",))] = Field(
        None,
        description="Passed to the model's chat template, under the template's name for it. If the"
        " template has no such switch, the response says so.",
    )
    reasoning_budget: Annotated[
        int | None,
        Called(others=("reasoning_budget_tokens", "thinking_budget", "thinking_token_budget")),
    ] = Field(
        None,
        ge=0,
        lt=2**31,
        description="After this number of tokens, the server ends the thoughts. If the chat"
        " template lets the model begin its thoughts, the prompt begins them instead. Refused if"
        " the template ends thoughts in the prompt, or has no thoughts.",
    )
    chat_template_kwargs: Annotated[dict[str, Any], Called(others=("template_vars",))] = Field(
        default={},
        max_length=64,
        description="Variables for the model's chat template. A variable that the template doesn't"
        " use is refused; a switch for thinking is ignored, and the response says so.",
    )

    @property
    def thinking_given(self) -> dict[str, Any]:
        """The parameters for thinking that the client sets."""
        given = HowToThink.model_fields.keys() & self.model_fields_set
        return {name: getattr(self, name) for name in given}

    @property
    def said_names(self) -> dict[str, str]:
        """The names that the client used for the thinking parameters and for `response_format`."""
        return {name: self._said[name] for name in _NAMED if name in self._said}

    def beside(self, nested: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
        """Merges `nested` with the parameters that the client set under their own names. `nested`:
        values that the wire format has elsewhere. `places`: their locations, for error messages.
        Raises BadRequest if a parameter's two values differ.
        """
        own = {name: getattr(self, name) for name in nested if name in self.model_fields_set}
        for name, value in own.items():
            is_form = isinstance(value, BaseModel)
            given = value.model_dump(by_alias=True, exclude_none=True) if is_form else value
            if nested[name] not in (None, given):
                said = self._said.get(name, name)
                raise BadRequest(
                    f"{said} and {places[name]} are the same parameter, but their values differ",
                    said,
                )
        return {**nested, **own}

    def said_as(self, request: "HowToThink") -> Self:
        """This request, changed so that errors use the names that the client used for these
        parameters in `request`.
        """
        given = _NAMED & request.model_fields_set
        self._said.update({name: request._said.get(name, name) for name in given})
        return self


_NAMED = HowToThink.model_fields.keys() | {"response_format"}
