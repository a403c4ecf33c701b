"""Routes that list and cancel requests."""

import hashlib
import logging
from collections.abc import Iterable
from typing import Literal

import flask
import werkzeug.exceptions
from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard import engine
from switchyard.app.http.body import json_response
from switchyard.app.http.identity import author_of, caller_of, is_operator, owner_of
from switchyard.app.openapi.contract import declares
from switchyard.app.services import services

audit = logging.getLogger("switchyard.audit")

blueprint = flask.Blueprint("switchyard_jobs", __name__, url_prefix="/v1")


class RequestRow(TypedDict):
    id: str
    object: Literal["request"]
    index: int
    request_id: str
    model: str
    state: Literal["pending", "prefill", "decode", "parked"]
    place: int | None
    priority: int
    age: float
    prompt_tokens: int
    completion_tokens: int
    pages: int


class RequestList(TypedDict):
    object: Literal["list"]
    data: list[RequestRow]


class Cancelled(TypedDict):
    id: str
    object: Literal["request"]
    cancelled: int


@blueprint.get("/requests")
@declares({200: RequestList})
def list_requests() -> flask.Response:
    """An entry for each choice of each request that has not ended, grouped by model.

    With an API key, the list contains the requests of that key; with an admin's key, all requests.
    """
    models = services().models
    asker = owner_of(flask.request)
    sees_all = caller_of(flask.request) is None or is_operator(flask.request)
    data = [
        _describe(model.config.name, job, asker)
        for model in models.engines
        for job in model.jobs()
        if sees_all or job.owner == asker
    ]
    return json_response({"object": "list", "data": data})


@blueprint.delete("/requests/<identifier>")
@declares({200: Cancelled}, errors=(404,))
def cancel_request(identifier: str) -> flask.Response:
    """End all choices of a request. Its client gets the text so far, with the finish_reason
    "cancelled".

    `identifier` is the `id` of the response, for the client that sent the request. Processes on the
    server's own machine, and an admin's API key, may also use an `id` from the list of requests.
    """
    num_cancelled, others = _cancel(identifier, services().models.engines)
    if not num_cancelled:  # the jobs may be another server's, so shared engines are asked
        shared = [model for model in services().models.engines if model.config.at]
        num_cancelled, others = _cancel(identifier, shared, timeout=1.0)
    for other in others:
        audit.warning("%s: cancel %s of %s", author_of(flask.request), identifier, other)
    if not num_cancelled:
        raise werkzeug.exceptions.NotFound(
            f"this client has no waiting or running request {identifier[:100]!r}"
        )
    return json_response({"id": identifier, "object": "request", "cancelled": num_cancelled})


def _cancel(
    identifier: str, models: Iterable[engine.Engine], timeout: float = 0.0
) -> tuple[int, set[str]]:
    """Cancels the jobs of a request. Returns their number, and the other clients whose jobs were
    among them.
    """
    asker, may_end_all = owner_of(flask.request), is_operator(flask.request)
    num_cancelled, others = 0, set()
    for model in models:
        for job in model.jobs(timeout):
            of, _ = _request_of(job)
            is_own = of == identifier and job.owner == asker
            if is_own or (may_end_all and identifier in (of, _name_of(of))):
                num_cancelled += model.cancel(job.identifier)
                if not is_own:
                    others.add(job.client)
    return num_cancelled, others


def _describe(model: str, job: engine.JobState, asker: str) -> RequestRow:
    of, index = _request_of(job)
    return {
        "id": _name_of(of),
        "object": "request",
        "index": index,
        "request_id": job.request_id if job.owner == asker else "",
        "model": model,
        "state": job.state,
        "place": job.place,
        "priority": job.priority,
        "age": round(job.age, 3),
        "prompt_tokens": job.prompt_tokens,
        "completion_tokens": job.new_tokens,
        "pages": job.num_pages,
    }


def _name_of(identifier: str) -> str:
    """A public name for a request. The response's identifier stays private, because it gives access
    to the stream.
    """
    return f"request-{hashlib.sha256(identifier.encode()).hexdigest()[:16]}"


def _request_of(job: engine.JobState) -> tuple[str, int]:
    """The identifier of a job's response, and the index of the job's choice."""
    identifier, _, index = job.identifier.rpartition("-")
    return identifier, int(index)
