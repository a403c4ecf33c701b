"""Converts forms and query strings to the values that the same request would have as JSON."""

import contextlib
import io
import json
import types
import typing
import urllib.parse
from typing import Annotated, Any, Literal, Union

import flask
import werkzeug.exceptions
from werkzeug.formparser import MultiPartParser
from werkzeug.sansio.multipart import File

from switchyard.app.exceptions import BadRequest
from switchyard.app.http.body import MAX_VALUES
from switchyard.app.request import written
from switchyard.app.request.validation import MAX_NAMES, Parameters

TRUE = frozenset(("true", "on", "yes"))  # browsers send "on" for a checked box
FALSE = frozenset(("false", "off", "no"))


def parse_form(kind: type[Parameters], data: bytes) -> dict[str, Any]:
    """The values of a form in the current request's body, keyed by parameter. Raises BadRequest."""
    if flask.request.mimetype == "multipart/form-data":
        return _values(kind, _parts(data, flask.request.mimetype_params.get("boundary", "")))
    return _values(kind, _pairs(data, "invalid_body"))


def read_query(kind: type[Parameters]) -> dict[str, Any]:
    """The values of the current request's query string, keyed by parameter. Raises BadRequest."""
    return _values(kind, _pairs(flask.request.query_string, "invalid_query"))


class _Fields(MultiPartParser):
    """Refuses files, because flask.request.form would store a file on disk before the check."""

    def start_file_streaming(self, event: File, total_content_length: int | None) -> Any:
        name = event.name or "a part without a name"
        raise BadRequest(f"{name} is a file, which is not supported", event.name)


def _parts(data: bytes, boundary: str) -> list[tuple[str, str]]:
    fields = _Fields(max_form_parts=MAX_NAMES)
    try:
        form, _ = fields.parse(io.BytesIO(data), boundary.encode(), len(data))
    except werkzeug.exceptions.RequestEntityTooLarge:
        raise BadRequest(f"the form has more than {MAX_NAMES} parts", None) from None
    except ValueError as reason:
        raise BadRequest(f"the form can't be read: {reason}", None, "invalid_body") from None
    if None in form:
        raise BadRequest("a part of the form has no name", None, "invalid_body")
    return list(form.items(multi=True))


def _pairs(data: bytes, code: str) -> list[tuple[str, str]]:
    try:
        # werkzeug's parser isn't used, because it replaces bytes that aren't UTF-8, and has no
        # limit on fields.
        return urllib.parse.parse_qsl(
            data.decode(), keep_blank_values=True, errors="strict", max_num_fields=MAX_NAMES
        )
    except ValueError as reason:
        raise BadRequest(f"the form can't be read: {reason}", None, code) from None


def _values(kind: type[Parameters], pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """The values of `pairs` by name. An empty field counts as unset."""
    fields = {name: kind.model_fields[field] for field, name in kind.names_of_fields().items()}
    others = kind.other_names().items()
    fields |= {other: fields[name] for other, name in others if name in fields}
    values: dict[str, Any] = {}
    for name, text in pairs:
        if not text:
            continue
        annotation = fields[name].annotation if name in fields else None
        is_text = _is_text(annotation)
        value = text if is_text else _read(text)
        if not _is_list(annotation):
            if name in values:
                raise BadRequest(f"{name} is given more than once", name)
            values[name] = value
            continue
        if not is_text:
            with contextlib.suppress(ValueError):  # validation raises this error, with the name
                value = written.token_ids(value)
        values.setdefault(name, []).extend(value if isinstance(value, list) else [value])
    return values


def _read(text: str) -> Any:
    """The JSON value of a text. A text that isn't JSON is returned unchanged, and validation
    refuses it.
    """
    if text.lower() in TRUE | FALSE:
        return text.lower() in TRUE
    if text.count(",") > MAX_VALUES:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _is_list(annotation: Any) -> bool:
    return any(typing.get_origin(kind) is list for kind in _kinds(annotation))


def _is_text(annotation: Any) -> bool:
    """Whether the type accepts strings, alone or as items of a list. Such strings are not parsed as
    JSON.
    """
    for kind in _kinds(annotation):
        items = typing.get_args(kind)
        is_choice = typing.get_origin(kind) is Literal and isinstance(items[0], str)
        is_list = typing.get_origin(kind) is list and _is_text(items[0])
        if kind is str or is_choice or is_list:
            return True
    return False


def _kinds(annotation: Any) -> list[Any]:
    """The members of a union; for any other type, the type itself."""
    origin, items = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _kinds(items[0])
    if origin in (types.UnionType, Union):
        return [kind for item in items for kind in _kinds(item)]
    return [annotation]
