"""JSON bodies of requests and responses."""

import codecs
from collections.abc import Mapping
from typing import Any

import flask
import pydantic_core
import werkzeug.exceptions

from switchyard import engine
from switchyard.app.exceptions import BadRequest, BodyTimeout

MAX_VALUES = 100_000  # values in a body; more are allowed in longer bodies, one per `VALUE_BYTES`
VALUE_BYTES = 10

# Python's `str.splitlines` and others treat these as ends of lines. In JSON they occur only inside
# strings.
_SEPARATORS = [(c.encode(), rf"\u{ord(c):04x}".encode()) for c in "\x85\u2028\u2029"]


def check_values(data: bytes, max_bytes: int) -> None:
    """Raises BadRequest for JSON with more values than a body of `max_bytes` needs.

    Parsing values holds the GIL. Counting brackets and commas costs almost nothing. Brackets and
    commas inside strings don't count.
    """
    limit = max(MAX_VALUES, max_bytes // VALUE_BYTES)
    if _num_marks(data) <= limit:
        return
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"")
    if plain.count(b'"') > 4 * limit or _num_marks(b"".join(plain.split(b'"')[::2])) > limit:
        raise BadRequest(f"the body has more than {limit} values", None)


def _num_marks(data: bytes) -> int:
    """The approximate number of values in a JSON text."""
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def parse_json(data: bytes) -> dict[str, Any]:
    """The JSON object in the current request's body. Raises BadRequest, or werkzeug's
    UnsupportedMediaType.

    NaN and infinities are accepted here, so that validation can name the parameter.
    """
    if flask.request.mimetype and not flask.request.is_json and not is_curls(data):
        raise werkzeug.exceptions.UnsupportedMediaType(
            f"the body must be JSON, with Content-Type: application/json,"
            f" not {flask.request.mimetype}"
        )
    try:
        # Strings are not cached, because a body with many different names would only churn the
        # cache.
        with engine.panics_as(ValueError, "it can't be read"):
            value = pydantic_core.from_json(
                data.removeprefix(codecs.BOM_UTF8), allow_inf_nan=True, cache_strings="none"
            )
    except ValueError as reason:
        raise BadRequest(f"the body is not valid JSON: {reason}", None, "invalid_json") from None
    if not isinstance(value, dict):
        raise BadRequest("the body must be a JSON object", None, "invalid_json")
    return value


def is_curls(data: bytes) -> bool:
    """Whether the current request's body is JSON that curl sends as a form, as it does with `-d`.

    A web page can send the same request without a CORS preflight, but its browser adds `Origin` or
    `Sec-Fetch-Site`, which a page can't remove.
    """
    headers = flask.request.headers
    return (
        flask.request.mimetype == "application/x-www-form-urlencoded"
        and data[:64].lstrip().startswith(b"{")
        and "Origin" not in headers
        and "Sec-Fetch-Site" not in headers
    )


def read_bytes(max_bytes: int) -> bytes:
    """The body of the current request, unparsed. A second call returns the same bytes at no cost.

    Raises BadRequest, werkzeug's RequestEntityTooLarge or UnsupportedMediaType, BodyTimeout, or
    EngineError if the server has no thread to read with.
    """
    coding = flask.request.content_encoding
    if coding not in (None, "identity"):
        raise werkzeug.exceptions.UnsupportedMediaType(
            f"Content-Encoding: {coding} is not supported; the body must be sent uncompressed"
        )
    too_large = werkzeug.exceptions.RequestEntityTooLarge(
        f"the body is longer than the {max_bytes} bytes that this server accepts"
    )
    is_chunked = flask.request.content_length is None
    # werkzeug cuts a chunked body at the limit without an error, so one more byte shows the excess.
    flask.request.max_content_length = max_bytes + is_chunked
    try:
        data = flask.request.get_data()
        if len(data) > max_bytes:
            raise too_large
        return data
    except werkzeug.exceptions.RequestEntityTooLarge:
        raise too_large from None
    except (werkzeug.exceptions.HTTPException, BadRequest, BodyTimeout, engine.EngineError):
        raise
    except Exception as reason:  # the WSGI server's errors, such as for bad chunks
        raise BadRequest(f"the body can't be read: {reason}", None, "invalid_body") from None


def dumps(value: Any) -> bytes:
    """The value as a single line of JSON in UTF-8. U+0085, U+2028 and U+2029 are escaped, because
    many clients that read a stream line by line would split the JSON there.
    """
    data = pydantic_core.to_json(value)  # takes a quarter of the time of json.dumps
    if data.isascii():
        return data
    for separator, escaped in _SEPARATORS:
        if separator in data:
            data = data.replace(separator, escaped)
    return data


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> flask.Response:
    return flask.Response(dumps(value), status, headers, mimetype="application/json")
