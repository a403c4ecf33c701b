"""JSON objects to pydantic models, with errors in words of the API. Pure."""

import contextlib
import difflib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from switchyard import engine
from switchyard.app.exceptions import BadRequest
from switchyard.app.request import neutral

MAX_SHOWN = 100  # characters of a name that a client made up
SIMILAR = 0.75  # a share of equal letters, from which on a name may have been meant
MAX_NAMES = 100  # more than any object here knows, so at least one is wrong

NEUTRAL = "Not supported, but for these values, which ask for nothing."  # says a schema

SETTLED = "Not supported, but for these values, which other parameters or the route settle."

TAG = "\0"  # begins a discriminator's tag, which isn't a step on the way to a value


def _admit(schema: dict[str, Any], kind: type[BaseModel]) -> None:
    """Have the JSON schema of a model admit what is taken out of objects before the model sees
    them: nulls, by any name, and values that ask for nothing.
    """
    for name in getattr(kind, "withheld", ()):
        del schema["properties"][kind.model_fields[name].alias or name]
    required = schema.get("required", ())
    for name, value in schema.get("properties", {}).items():
        if name not in required and {"type": "null"} not in value.get("anyOf", ()):
            outer = {key: value.pop(key) for key in ("description", "default") if key in value}
            kinds = value["anyOf"] if value.keys() == {"anyOf"} else [value]
            schema["properties"][name] = {"anyOf": [*kinds, {"type": "null"}], **outer}
        if schema["properties"][name].get("default", 0) is None:
            del schema["properties"][name]["default"]
    for name, values in getattr(kind, "neutral", {}).items():
        schema["properties"][name] = {"enum": [*values, None], "description": NEUTRAL}
    for name, values in getattr(kind, "settled", {}).items():
        schema["properties"][name] = {"enum": [*values, None], "description": SETTLED}
    schema["additionalProperties"] = {"type": "null"}


# Of an object whose nulls are taken out before (`without_nulls`).
Finite = ConfigDict(
    strict=True, extra="forbid", frozen=True, allow_inf_nan=False, json_schema_extra=_admit
)


class Object(BaseModel):
    """A part of a body that may be given with nulls, and with `neutral` values, as `Parameters`."""

    model_config = Finite

    place: ClassVar[str] = ""  # what the body calls the list of such parts
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _take_out(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        given = without_nulls(value)
        for name, values in cls.neutral.items():
            if name in given and _is_one_of(given[name], values):
                del given[name]
                neutral.note(f"{cls.place}.{name}")
        return given


def _off(value: Any) -> Any:
    if value is not False:  # which 0 equals
        raise ValueError("must be false")
    return value


Off = Annotated[Literal[False], BeforeValidator(_off)]


class Parameters(BaseModel):
    """The body of a request. Strict: a number in a string is none."""

    model_config = Finite

    # Parameters that the API knows and this server doesn't have, with the values that ask for
    # nothing: those are taken and told, all others refused.
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {}

    # The same, where the values ask for what is done anyway: other parameters say it, or the route.
    settled: ClassVar[dict[str, tuple[Any, ...]]] = {}

    # Fields of a base class that aren't to be asked for here: they have other names, or no place in
    # the answer. They keep their defaults.
    withheld: ClassVar[frozenset[str]] = frozenset()

    # Why, or what to use instead, where it isn't plain.
    reasons: ClassVar[dict[str, str]] = {}

    # What an error says of a parameter that may have several types, each of which would have its
    # say.
    kinds: ClassVar[dict[str, str]] = {}

    @classmethod
    def names_of_fields(cls) -> dict[str, str]:
        """What clients call each field that they may give."""
        fields = cls.model_fields.items()
        return {name: field.alias or name for name, field in fields if name not in cls.withheld}

    def check(self) -> None:
        """Raises BadRequest where parameters contradict each other."""


Request = TypeVar("Request", bound=Parameters)


def validate(kind: type[Request], body: dict[str, Any]) -> Request:
    """Raises BadRequest, which names the parameter."""
    given = without_nulls(body)
    for values in (kind.neutral, kind.settled):
        for name in [name for name in values if name in given]:
            if not _is_one_of(given.pop(name), values[name]):
                raise _unsupported(name, values[name], kind.reasons)
            if values is kind.neutral:
                neutral.note(name)
    known = set(kind.names_of_fields().values())
    for name in given:
        if name not in known:
            raise _unknown(name[:MAX_SHOWN], known)
    try:
        with engine.panics_as(BadRequest, "the body can't be read"):
            request = kind.model_validate(given)
    except ValidationError as error:
        raise _explain(error, given, kind.kinds) from None
    try:
        request.check()
    except BadRequest as error:
        raise _as_called(error, kind.names_of_fields()) from None
    return request


@contextlib.contextmanager
def renaming(names: Mapping[str, str]) -> Iterator[None]:
    """Have errors call parameters by other names, as the request did that they were made of."""
    try:
        yield
    except BadRequest as error:
        raise _as_called(error, names) from None


def _unsupported(name: str, values: tuple[Any, ...], reasons: Mapping[str, str]) -> BadRequest:
    reason = f": {reasons[name]}" if name in reasons else ""
    if values and not reason:
        shown = " or ".join(map(json.dumps, values))
        reason = f", but for {shown}, which ask{'s' * (len(values) == 1)} for nothing"
    return BadRequest(f"{name} is not supported{reason}", name, "unsupported_parameter")


def _unknown(name: str, known: Iterable[str]) -> BadRequest:
    nearest = difflib.get_close_matches(name.lower(), known, 1, SIMILAR)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return BadRequest(f"unknown parameter: {name}{hint}", name, "unknown_parameter")


def _as_called(error: BadRequest, names: Mapping[str, str]) -> BadRequest:
    """The error of a field by the name that clients have for it."""
    field, dot, rest = (error.param or "").partition(".")
    name = names.get(field, field)
    if name == field:
        return error
    message = str(error)
    if message.startswith(field):
        message = name + message.removeprefix(field)
    return BadRequest(message, name + dot + rest, error.code)


def without_nulls(value: dict[str, Any]) -> dict[str, Any]:
    """null is how many clients say that they don't give a parameter.

    Of very many, the first: pydantic would list all that are wrong.
    """
    given = ((name, item) for name, item in value.items() if item is not None)
    return dict(itertools.islice(given, MAX_NAMES))


def _explain(error: ValidationError, given: dict[str, Any], kinds: dict[str, str]) -> BadRequest:
    """The first thing that is wrong, in words of the API."""
    errors = error.errors(include_url=False, include_context=False)
    # What is missing may have been among very many names that are wrong.
    first = min(errors, key=lambda fault: fault["type"] == "missing")
    steps = tuple(step for step in first["loc"] if not str(step).startswith(TAG))
    if isinstance(given.get(str(steps[0])), str):  # which was made a list of one
        steps = steps[:1]
    where = ".".join(str(step)[:MAX_SHOWN] for step in steps)
    match first["type"]:
        case "extra_forbidden":
            return BadRequest(f"unknown parameter: {where}", where, "unknown_parameter")
        case "missing":
            return BadRequest(f"missing parameter: {where}", where, "missing_required_parameter")
    if first["loc"][0] in kinds:
        where = str(first["loc"][0])
        message = kinds[where]
    else:
        message = first["msg"].removeprefix("Value error, ")
    return BadRequest(f"{where}: {message[0].lower()}{message[1:]}", where)


def _is_one_of(value: Any, values: tuple[Any, ...]) -> bool:
    """By type too: to Python, 0 is False."""
    return any(type(value) is type(other) and value == other for other in values)
