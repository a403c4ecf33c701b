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
from switchyard.app.request.neutral import Table, Values

MAX_SHOWN = 100  # characters of a name that a client made up
SIMILAR = 0.75  # a share of equal letters, from which on a name may have been meant
MAX_NAMES = 100  # more than any object here knows, so at least one is wrong
MAX_GIVEN = 300  # likewise, of a body, whose fields may have other names

NEUTRAL = "Not supported, but for these values, which ask for nothing."  # says a schema

TOLD = "Without effect, whatever it is: taken, and told."

SETTLED = "Not supported, but for these values, which other parameters or the route settle."

OTHER = "Another name of"

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
        some = {} if values is neutral.ANY else {"enum": [*values, None]}
        schema["properties"][name] = {**some, "description": NEUTRAL if some else TOLD}
    for name, values in getattr(kind, "settled", {}).items():
        schema["properties"][name] = {"enum": [*values, None], "description": SETTLED}
    for name, own in kind.other_names().items() if issubclass(kind, Parameters) else ():
        if own in schema["properties"] and name not in schema["properties"]:
            same = {k: v for k, v in schema["properties"][own].items() if k != "default"}
            schema["properties"][name] = {**same, "description": f"{OTHER} `{own}`."}
    schema["additionalProperties"] = {"type": "null"}


# Of an object whose nulls are taken out before (`without_nulls`).
Finite = ConfigDict(
    strict=True, extra="forbid", frozen=True, allow_inf_nan=False, json_schema_extra=_admit
)


class Object(BaseModel):
    """A part of a body that may be given with nulls, and with `neutral` values, as `Parameters`."""

    model_config = Finite

    place: ClassVar[str] = ""  # what the body calls the list of such parts
    neutral: ClassVar[Table] = {}

    @model_validator(mode="before")
    @classmethod
    def _take_out(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        given = without_nulls(value)
        for name in given.keys() & cls.neutral.keys():
            if not neutral.asks_for_nothing(given.pop(name), cls.neutral[name]):
                raise ValueError(f"{name} is not supported{_but_for(cls.neutral[name])}")
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
    neutral: ClassVar[Table] = {}

    # The same, where the values ask for what is done anyway: other parameters say it, or the route.
    settled: ClassVar[Table] = {}

    # Values that leave a field to the server, as null does.
    unset: ClassVar[Table] = {}

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

    @classmethod
    def other_names(cls) -> Mapping[str, str]:
        """Names beside those, and which each stands for."""
        return {}

    @classmethod
    def settle(cls, given: dict[str, Any]) -> dict[str, Any]:
        """What is given, by the names of the API, as it is to be read."""
        return given

    def check(self) -> None:
        """Raises BadRequest where parameters contradict each other."""


Request = TypeVar("Request", bound=Parameters)


def validate(kind: type[Request], body: dict[str, Any]) -> Request:
    """Raises BadRequest, which names the parameter."""
    given, said = _known(kind, without_nulls(body, MAX_GIVEN))
    with renaming(said):
        given = kind.settle(given)
        for name in [name for name in given if name in kind.neutral or name in kind.settled]:
            table = kind.neutral if name in kind.neutral else kind.settled
            if not neutral.asks_for_nothing(given.pop(name), table[name]):
                raise _unsupported(name, table[name], kind.reasons)
            if table is kind.neutral:
                neutral.note(name)
        known = set(kind.names_of_fields().values())
        for name in [name for name in given if name not in known]:
            if not neutral.takes_unknown():
                raise _unknown(name[:MAX_SHOWN], known)
            del given[name]
            neutral.note(name)
        request = _read(kind, given)
        try:
            request.check()
        except BadRequest as error:
            raise _as_called(error, kind.names_of_fields()) from None
    return request


def _known(kind: type[Parameters], body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """What is given, by the names of the API, and of those what the client has called otherwise.
    Raises BadRequest where a parameter stands under two names with two values.
    """
    others, fields = kind.other_names(), kind.names_of_fields()
    unset = {fields.get(field, field): values for field, values in kind.unset.items()}
    given: dict[str, Any] = {}
    said: dict[str, str] = {}
    for name, value in body.items():
        known = others.get(name, name)
        if neutral.asks_for_nothing(value, unset.get(known, ())):
            continue
        if known not in given:
            given[known] = value
            said[known] = name
        elif isinstance(value, bool) != isinstance(given[known], bool) or value != given[known]:
            raise BadRequest(f"{name} and {said[known]} are one parameter, and differ", name)
    return given, {known: name for known, name in said.items() if known != name}


def _read(kind: type[Request], given: dict[str, Any]) -> Request:
    """Raises BadRequest."""
    try:
        with engine.panics_as(BadRequest, "the body can't be read"):
            return kind.model_validate(given)
    except ValidationError as error:
        if not neutral.takes_unknown() or not _leave_out_unknown(error, given):
            raise _explain(error, given, kind.kinds) from None
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise _explain(error, given, kind.kinds) from None


def _leave_out_unknown(error: ValidationError, given: dict[str, Any]) -> bool:
    """Whether there are fields inside `given` that nobody knows; they are told."""
    found = False
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        if fault["type"] == "extra_forbidden":
            *steps, name = (step for step in fault["loc"] if not str(step).startswith(TAG))
            inner: Any = given
            with contextlib.suppress(LookupError, TypeError):
                for step in steps:
                    inner = inner[step]
                del inner[name]
                neutral.note(".".join(str(s) for s in (*steps, name) if isinstance(s, str)))
                found = True
    return found


@contextlib.contextmanager
def renaming(names: Mapping[str, str]) -> Iterator[None]:
    """Have errors call parameters by other names, as the request did that they were made of."""
    try:
        yield
    except BadRequest as error:
        raise _as_called(error, names) from None


def _unsupported(name: str, values: tuple[Any, ...], reasons: Mapping[str, str]) -> BadRequest:
    reason = f": {reasons[name]}" if name in reasons else _but_for(values)
    return BadRequest(f"{name} is not supported{reason}", name, "unsupported_parameter")


def _but_for(values: Values) -> str:
    shown = " or ".join(dict.fromkeys(json.dumps(v) for v in values if type(v) is not float))
    return f", but for {shown}, which ask{'s' * (' or ' not in shown)} for nothing" * bool(values)


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
    return BadRequest(message, name + dot + rest, error.code, error.details)


def without_nulls(value: dict[str, Any], most: int = MAX_NAMES) -> dict[str, Any]:
    """null is how many clients say that they don't give a parameter.

    Of very many, the first: pydantic would list all that are wrong.
    """
    given = ((name, item) for name, item in value.items() if item is not None)
    return dict(itertools.islice(given, most))


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
