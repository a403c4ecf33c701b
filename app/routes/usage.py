"""The route that reports usage by API key, from the ledger."""

import csv
import io
import sqlite3
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal, NotRequired

import flask
import werkzeug.exceptions
from pydantic import Field
from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard.app.exceptions import BadRequest
from switchyard.app.http.body import json_response
from switchyard.app.http.form import read_query
from switchyard.app.http.identity import caller_of
from switchyard.app.ledger.usage import GROUPS, SUMS
from switchyard.app.openapi.contract import declares
from switchyard.app.request.validation import Parameters, validate
from switchyard.app.services import services

MAX_DAYS = 366
MAX_ROWS = 100_000
CSV = "text/csv"
# Spreadsheets treat a cell with such a beginning as a formula.
FORMULA = ("=", "+", "-", "@", "\t", "\r")

blueprint = flask.Blueprint("switchyard_usage", __name__, url_prefix="/v1")


class UsageQuery(Parameters):
    first: str | None = Field(
        None,
        alias="from",
        description="First day, in UTC, such as `2026-11-01`. Default: the first day of the month"
        " of `to`.",
        json_schema_extra={"format": "date"},
    )
    last: str | None = Field(
        None,
        alias="to",
        description="Last day. Default: today.",
        json_schema_extra={"format": "date"},
    )
    group_by: str = Field(
        ",".join(GROUPS),
        description="The names by which to group rows: one or more of `day,key,model`.",
        json_schema_extra={"pattern": "^(day|key|model)(,(day|key|model)){0,2}$"},
    )
    format: Literal["json", "csv"] = Field("json", description="Format of the answer.")


class UsageRow(TypedDict):
    day: NotRequired[str]
    key: NotRequired[str]
    model: NotRequired[str]
    requests: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class UsageList(TypedDict):
    object: Literal["list"]
    data: list[UsageRow]


@blueprint.get("/usage")
@declares({200: UsageList}, query=UsageQuery, streams={CSV: str}, errors=(501, 503), counts=False)
def list_usage() -> flask.Response:
    """The usage of the request's own API key, by day and model; with an admin's key, or if the
    server has no keys, all usage.
    """
    query = validate(UsageQuery, read_query(UsageQuery))
    last = _day(query.last, "to") or datetime.now(UTC).date()
    first = _day(query.first, "from") or last.replace(day=1)
    if first > last:
        raise BadRequest(f"from: {first} is after {last}, the value of to", "from")
    if last - first >= timedelta(MAX_DAYS):
        raise BadRequest(f"from: {first} to {last} spans more than {MAX_DAYS} days", "from")
    groups = _groups(query.group_by)
    ledger = services().ledger
    if ledger is None:
        raise werkzeug.exceptions.NotImplemented("this server has no ledger: set `ledger`")
    caller = caller_of(flask.request)
    key = None if caller is None or caller.is_admin else caller.name
    try:
        rows = ledger.usage(first, last, groups, key, MAX_ROWS + 1)
    except sqlite3.Error as reason:
        raise werkzeug.exceptions.ServiceUnavailable(
            f"the ledger can't be read now: {reason}"
        ) from None
    if len(rows) > MAX_ROWS:
        raise BadRequest(
            f"group_by: more than {MAX_ROWS} rows; request fewer days, or group by fewer names",
            "group_by",
        )
    if query.format == "csv":
        return flask.Response(_csv([*groups, *SUMS], rows), mimetype=CSV)
    return json_response({"object": "list", "data": rows})


def _day(text: str | None, name: str) -> date | None:
    """The day in a parameter, or None. Raises BadRequest."""
    if text is None:
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%d").date()
    except ValueError:
        raise BadRequest(f"{name}: must be a day such as 2026-11-01", name) from None


def _groups(text: str) -> list[str]:
    """The names in `group_by`, in the order of GROUPS. Raises BadRequest."""
    asked = [name.strip() for name in text.split(",")]
    for name in asked:
        if name not in GROUPS:
            raise BadRequest(f"group_by: must be one or more of {','.join(GROUPS)}", "group_by")
    return [name for name in GROUPS if name in asked]


def _csv(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(names)
    writer.writerows([_guarded(row[name]) for name in names] for row in rows)
    return text.getvalue()


def _guarded(cell: Any) -> Any:
    """The cell. A text that a spreadsheet would treat as a formula gets an apostrophe before it."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell
