"""Validates JSON objects with pydantic models, and words errors in the API's terms. Pure."""

import contextlib
import difflib
import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from switchyard import engine
from switchyard.app.exceptions import BadRequest
from switchyard.app.request import neutral
from switchyard.app.request.names import all_names_of
from switchyard.app.request.neutral import Table, Values

MAX_SHOWN = 100  # maximum length of a name that an error repeats
SIMILAR = 0.75  # minimum similarity of two names for an error to suggest the known name
MAX_NAMES = 100  # names in an object; no object has that many fields, so at least one is unknown
MAX_GIVEN = 300  # names in a body, whose fields may also have other servers' names
# A description in the JSON schema.
NEUTRAL = "Not supported, except for these values, which have no effect."
TOLD = "Any value is accepted without effect; the response says so."
SETTLED = "Not supported, except for these values, which other parameters or the route imply."
OTHER = "Another name of"
TAG = "\0"  # first character of a discriminator's tag; tags aren't part of a parameter's path


def _admit(schema: dict[str, Any], kind: type[BaseModel]) -> None:
    """Completes the JSON schema of a model.

    Nulls and neutral values are removed from an object before pydantic sees the object, and other
    names are replaced. The schema must nevertheless allow these values and names.
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
    body = kind if issubclass(kind, Parameters) else None
    for name, values in (body.lacking() if body else getattr(kind, "neutral", {})).items():
        some = {} if values is neutral.ANY else {"enum": [*values, None]}
        schema["properties"][name] = {**some, "description": NEUTRAL if some else TOLD}
    for name, values in getattr(kind, "settled", {}).items():
        schema["properties"][name] = {"enum": [*values, None], "description": SETTLED}
    for name, own in body.other_names().items() if body else ():
        if own in schema["properties"] and name not in schema["properties"]:
            same = {k: v for k, v in schema["properties"][own].items() if k != "default"}
            schema["properties"][name] = {**same, "description": f"{OTHER} `{own}`."}
    schema["additionalProperties"] = {"type": "null"}


# For objects whose nulls `without_nulls` has removed.
Finite = ConfigDict(
    strict=True, extra="forbid", frozen=True, allow_inf_nan=False, json_schema_extra=_admit
)


class Object(BaseModel):
    """An object inside a body. As in `Parameters`, members may be null or `neutral`."""

    model_config = Finite

    place: ClassVar[str] = ""  # the parameter that holds such objects
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
    if value is not False:  # not `==`, because 0 == False
        raise ValueError("must be false")
    return value


Off = Annotated[Literal[False], BeforeValidator(_off)]


class Parameters(BaseModel):
    """The body of a request. Validation is strict: a string is not accepted as a number."""

    model_config = Finite

    # Parameters of the API that this body lacks, with their neutral values. The answer lists a
    # parameter with a neutral value; any other value is refused. `lacking` leaves the body's own
    # parameters out of a shared table.
    neutral: ClassVar[Table] = {}

    # Parameters with values that the route or another parameter implies. Other values are refused.
    settled: ClassVar[Table] = {}

    # Values that leave a field to the server, as null does.
    unset: ClassVar[Table] = {}

    # Fields of a base class that this body doesn't accept, because they have other names here or
    # can't be shown in the answer. They keep their defaults.
    withheld: ClassVar[frozenset[str]] = frozenset()

    # For the error of an unsupported parameter: the reason, or the parameter to use instead.
    reasons: ClassVar[dict[str, str]] = {}

    # Errors for parameters with several types, because pydantic has a separate error for each type.
    kinds: ClassVar[dict[str, str]] = {}

    # The client's names, keyed by the API's names.
    _said: dict[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def names_of_fields(cls) -> Mapping[str, str]:
        """The API's names for the fields that a client may set, keyed by field."""
        return _names_of_fields(cls)

    @classmethod
    def lacking(cls) -> Table:
        """The `neutral` table, without the parameters that the body has."""
        return _lacking(cls)

    @classmethod
    def other_names(cls) -> Mapping[str, str]:
        """Further names that the body accepts, each with the API's name."""
        return all_names_of(cls)

    @classmethod
    def translate(cls, body: dict[str, Any]) -> dict[str, Any]:
        """A hook that rewrites the body before `settle`. The body has the client's names."""
        return body

    @classmethod
    def settle(cls, given: dict[str, Any]) -> dict[str, Any]:
        """A hook that rewrites the parameters before validation. The parameters have the API's
        names.
        """
        return given

    def check(self) -> None:
        """Raises BadRequest if parameters contradict each other."""

    @contextlib.contextmanager
    def as_said(self) -> Iterator[None]:
        """Within this context, errors about fields use the client's own names for parameters."""
        with renaming(self._said), renaming(self.names_of_fields()):
            yield


Request = TypeVar("Request", bound=Parameters)


@functools.cache
def _names_of_fields(kind: type[Parameters]) -> Mapping[str, str]:
    fields = kind.model_fields.items()
    return {name: field.alias or name for name, field in fields if name not in kind.withheld}


@functools.cache
def _lacking(kind: type[Parameters]) -> Table:
    has = {*kind.names_of_fields().values(), *kind.settled, *kind.other_names()}
    return {name: values for name, values in kind.neutral.items() if name not in has}


def known_by(kind: type[Parameters]) -> set[str]:
    """All names of parameters that a body may contain."""
    return {
        *(*kind.names_of_fields().values(), *kind.other_names()),
        *(*kind.lacking(), *kind.settled),
    }


def validate(kind: type[Request], body: dict[str, Any]) -> Request:
    """Validates a body, and returns the request. Raises BadRequest with the parameter's name."""
    given, said = _known(kind, kind.translate(without_nulls(body, MAX_GIVEN)))
    with renaming(said):
        given = kind.settle(given)
        lacking = kind.lacking()
        for name in [name for name in given if name in lacking or name in kind.settled]:
            table = lacking if name in lacking else kind.settled
            if not neutral.asks_for_nothing(given.pop(name), table[name]):
                raise _unsupported(name, table[name], kind.reasons)
            if table is lacking:
                neutral.note(name)
        known = set(kind.names_of_fields().values())
        for name in [name for name in given if name not in known]:
            if not neutral.takes_unknown():
                raise _unknown(name[:MAX_SHOWN], known | kind.other_names().keys())
            del given[name]
            neutral.note(name)
        request = _read(kind, given)
    request._said = said
    with request.as_said():
        request.check()
    return request


def _known(kind: type[Parameters], body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The given parameters keyed by the API's names, and the client's names where they differ.

    Raises BadRequest if two names set a parameter to different values.
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
            raise BadRequest(
                f"{name} and {said[known]} are the same parameter, but their values differ", name
            )
    return given, {known: name for known, name in said.items() if known != name}


def _read(kind: type[Request], given: dict[str, Any]) -> Request:
    """The validated request. Raises BadRequest."""
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
    """Removes unknown members from objects in `given`, and notes them. Returns whether there were
    any.
    """
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
    """Within this context, parameters in errors have the names that the client used."""
    try:
        yield
    except BadRequest as error:
        raise _as_called(error, names) from None


def _unsupported(name: str, values: tuple[Any, ...], reasons: Mapping[str, str]) -> BadRequest:
    reason = f"{'; ' if values else ': '}{reasons[name]}" if name in reasons else ""
    message = f"{name} is not supported{_but_for(values)}{reason}"
    return BadRequest(message, name, "unsupported_parameter")


def _but_for(values: Values) -> str:
    shown = " or ".join(dict.fromkeys(json.dumps(v) for v in values if type(v) is not float))
    have = "have" if " or " in shown else "has"
    return f", except for {shown}, which {have} no effect" if values else ""


def _unknown(name: str, known: Iterable[str]) -> BadRequest:
    nearest = difflib.get_close_matches(name.lower(), sorted(known), 1, SIMILAR)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return BadRequest(f"unknown parameter: {name}{hint}", name, "unknown_parameter")


def _as_called(error: BadRequest, names: Mapping[str, str]) -> BadRequest:
    """The error, with the client's name for the field."""
    field, dot, rest = (error.param or "").partition(".")
    name = names.get(field, field)
    if name == field:
        return error
    message = str(error)
    if message.startswith(field):
        message = name + message.removeprefix(field)
    return BadRequest(message, name + dot + rest, error.code, error.details)


def without_nulls(value: dict[str, Any], most: int = MAX_NAMES) -> dict[str, Any]:
    """The members that are not null. Many clients send null for a parameter that they don't set.
    Returns at most `most` members, because pydantic would list each wrong one.
    """
    given = ((name, item) for name, item in value.items() if item is not None)
    return dict(itertools.islice(given, most))


def _explain(error: ValidationError, given: dict[str, Any], kinds: dict[str, str]) -> BadRequest:
    """The first error, in the API's terms."""
    errors = error.errors(include_url=False, include_context=False)
    # Missing parameters come last: `without_nulls` may have cut them off after unknown ones.
    first = min(errors, key=lambda fault: fault["type"] == "missing")
    steps = tuple(step for step in first["loc"] if not str(step).startswith(TAG))
    if isinstance(given.get(str(steps[0])), str):  # a validator has made a list of the string
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
