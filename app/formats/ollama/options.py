"""The `options` object in Ollama's requests, and Ollama's own defaults. Pure."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from switchyard import engine
from switchyard.app.chat.thinking import Effort
from switchyard.app.exceptions import BadRequest
from switchyard.app.formats.text.request import called
from switchyard.app.request import written
from switchyard.app.request.generation import Generation, Tokens
from switchyard.app.request.neutral import FRONT_ENDS, LOADING, Table
from switchyard.app.request.sampling import Sampled
from switchyard.app.request.validation import Finite, renaming, validate


def _by_default(name: str, default: float, more: str = "", **limits: float) -> Any:
    own = engine.PARAMETERS[name]
    text = f"{own.doc} {more}".strip()
    return Field(default, description=text, **{**own.limits, **limits})  # type: ignore[call-overload]


class OllamaDefaults(Generation):
    unset: ClassVar[Table] = {**Generation.unset, "max_tokens": (-1, -2)}  # -2: fill the context

    max_tokens: Tokens | None = Field(
        None,
        description="Maximum number of new tokens, within the context. -1 or -2: the default, which"
        " is the setting `default_max_tokens`.",
    )
    temperature: float = _by_default("temperature", 0.8)
    top_k: int = _by_default("top_k", 40, "-1 or 0: off.", ge=-1)
    top_p: float = _by_default("top_p", 0.9)
    repetition_penalty: float | None = _by_default("repetition_penalty", 1.1)
    repetition_penalty_range: int = _by_default("repetition_range", 64, "-1: all. 0: off.")


_ASKED = {
    *Sampled.model_fields,
    *("max_tokens", "min_tokens", "stop", "stop_token_ids", "seed", "ignore_eos", "stop_on_loop"),
}


def _bare(schema: dict[str, Any], kind: type[BaseModel]) -> None:
    """The schema without descriptions, because the request has the same parameters, with
    descriptions, outside `options`.
    """
    admit: Any = Finite["json_schema_extra"]
    admit(schema, kind)
    for value in schema["properties"].values():
        value.pop("description", None)


class Options(OllamaDefaults):
    model_config = ConfigDict(**{**called("ollama"), "json_schema_extra": _bare})
    neutral: ClassVar[Table] = {**FRONT_ENDS, **LOADING}
    withheld: ClassVar[frozenset[str]] = frozenset(Generation.model_fields.keys() - _ASKED)

    # Open WebUI sends both parameters as options.
    reasoning_effort: Effort | None = None

    @classmethod
    def settle(cls, given: dict[str, Any]) -> dict[str, Any]:
        if isinstance(text := given.get("logit_bias"), str):
            given = {**given, "logit_bias": written.biases(text)}
        return super().settle(given)


def with_options(request: OllamaDefaults, given: Any) -> Any:
    """The request with the parameters from its `options` object. Raises BadRequest."""
    if not isinstance(given, dict):
        raise BadRequest("options: must be an object", "options")
    with renaming({name: f"options.{name}" for name in given}):
        options = validate(Options, given)
    names = options.names_of_fields()
    update = {}
    for field in options.model_fields_set:
        update[field] = getattr(options, field)
        if field in request.model_fields_set and getattr(request, field) != update[field]:
            name = names[field]
            message = f"options.{name} and {name} are the same parameter, but their values differ"
            raise BadRequest(message, f"options.{name}")
    found = request.model_copy(update=update)
    said = {names[f]: options._said.get(names[f], names[f]) for f in options.model_fields_set}
    found._said = {**request._said, **{own: f"options.{name}" for own, name in said.items()}}
    with found.as_said():
        found.check()
    return found
