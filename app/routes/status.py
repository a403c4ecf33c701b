"""The route that shows the server's state: models, queues, rates, memory."""

import time
from typing import Literal

import flask
from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard import __version__, engine
from switchyard.app.http.body import json_response
from switchyard.app.http.identity import caller_of
from switchyard.app.metrics.engines import last_iteration_age
from switchyard.app.openapi.contract import declares
from switchyard.app.services import Services, services

blueprint = flask.Blueprint("switchyard_status", __name__, url_prefix="/v1")

BEGIN = time.monotonic()


class StatusPages(TypedDict):
    all: int
    referenced: int
    cached: int


class StatusGpu(TypedDict):
    name: str
    allocated: int
    reserved: int
    free: int
    total: int


class StatusCopies(TypedDict):
    """Float16 copies of weights."""

    bytes: int
    min_tokens: int  # minimum tokens of a pass that uses the copies


class StatusModel(TypedDict, total=False):
    id: str
    state: engine.ModelState
    progress: float | None
    running: int
    waiting: int
    parked: int
    max_seq_len: int
    cache_mode: str
    max_batch_size: int
    max_pending: int
    pages: StatusPages
    tokens_per_second: float
    prompt_tokens_per_second: float
    iteration_ms: float | None
    last_iteration_age: float
    gpus: list[StatusGpu]
    unpacked_weights: StatusCopies
    products: str | None
    recoveries: int
    draft_acceptance: float | None


class StatusThreads(TypedDict):
    busy: int
    all: int


class StatusBody(TypedDict, total=False):
    object: Literal["status"]
    version: str
    uptime: float
    models: list[StatusModel]
    streams: int
    websockets: int
    threads: StatusThreads


@blueprint.get("/status")
@declares({200: StatusBody}, who="any")
def status() -> flask.Response:
    """Each model's state, queue, batch, and rates over the last ten seconds.

    Sizes are in bytes, and times in seconds except for `iteration_ms`. With a user's key, the
    response contains only states and sums.
    """
    caller = caller_of(flask.request)
    return json_response(status_of(services(), caller is None or caller.role != "user"))


def status_of(here: Services, sees_all: bool) -> StatusBody:
    models = [here.models.get(name) for name in here.models.names]
    tell = _whole if sees_all else _sums
    body: StatusBody = {
        "object": "status",
        "version": __version__,
        "uptime": round(time.monotonic() - BEGIN, 1),
        "models": [tell(here, model) for model in models],
    }
    if sees_all:
        body["streams"] = len(here.answers.streams)
        body["websockets"] = here.websockets.num_taken
        if here.threads.count is not None:
            busy, number = here.threads.count()
            body["threads"] = {"busy": busy, "all": number}
    return body


def _sums(here: Services, model: engine.Engine) -> StatusModel:
    stats = model.standing.stats
    running = stats.num_active if stats is not None else 0
    found = here.models.status(model.config.name)
    return {
        "id": model.config.name,
        "state": found.state,
        "progress": None if found.progress is None else round(found.progress, 3),
        "running": running,
        "waiting": max(model.num_jobs - running, 0),
        "parked": 0 if stats is None else stats.occupancy.parked_jobs,
    }


def _whole(here: Services, model: engine.Engine) -> StatusModel:
    stats, info = model.standing.stats, model.standing.info
    rates = model.standing.rates(time.monotonic())
    told = _sums(here, model)
    told |= {
        "max_batch_size": model.config.max_batch_size,
        "max_pending": model.config.max_pending,
        "tokens_per_second": round(rates.new_tokens, 1),
        "prompt_tokens_per_second": round(rates.prompt_tokens, 1),
        "iteration_ms": _ms(rates.iteration_seconds),
        "last_iteration_age": round(last_iteration_age(model), 3),
        "recoveries": model.standing.num_restarts,
        "draft_acceptance": None,
        "gpus": [],
    }
    if info is not None:
        told |= {
            "max_seq_len": info.max_seq_len,
            "cache_mode": info.cache_mode,
            "products": info.products,
        }
    if stats is not None:
        totals, held = stats.totals, stats.occupancy
        told["recoveries"] += totals.resets + totals.rebuilds + totals.reloads
        if totals.draft_tokens:
            told["draft_acceptance"] = round(totals.accepted_tokens / totals.draft_tokens, 3)
        told["gpus"] = [
            {
                "name": gpu.device,
                "allocated": gpu.allocated,
                "reserved": gpu.reserved,
                "free": gpu.free,
                "total": gpu.total,
            }
            for gpu in held.memory
        ]
        told["unpacked_weights"] = {
            "bytes": held.kept.num_bytes,
            "min_tokens": held.kept.min_tokens,
        }
        if info is not None:
            told["pages"] = {
                "all": info.num_pages,
                "referenced": held.referenced_pages,
                "cached": held.cached_pages,
            }
    return told


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)
