"""Receives a request and submits its jobs, for all wire formats. Runs on request threads."""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import flask

from switchyard import engine
from switchyard.app.config import Settings
from switchyard.app.delivery.reader import Submitted, check, deadlines
from switchyard.app.delivery.watch import WatchedClient
from switchyard.app.exceptions import BadRequest
from switchyard.app.http import origins
from switchyard.app.http.body import check_values, parse_json, read_bytes
from switchyard.app.http.client import Client
from switchyard.app.http.gate import LARGE, Gate, Place
from switchyard.app.http.identity import HOST, caller_of, owner_of, share_of
from switchyard.app.http.request_id import request_id
from switchyard.app.operations.account import Account, account_of
from switchyard.app.operations.keys import ApiKey
from switchyard.app.operations.limits import most_tokens, priority_of
from switchyard.app.parts.weight import WEIGH
from switchyard.app.request import neutral
from switchyard.app.request.generation import Generation
from switchyard.app.request.validation import Request

logger = logging.getLogger(__name__)

PLACE = "switchyard_place"  # name in flask.g while an input is inside the gate
NEWS = 5  # number of queries for a job's place in the queue per heartbeat interval


class Named(Protocol):
    @property
    def names(self) -> dict[str, str]:
        """The request's names for parameters, keyed by the engine's names, where the two differ."""


def receive(
    parse_body: Callable[[dict[str, Any]], Request],
    settings: Settings,
    gate: Gate,
    read: Callable[[bytes], dict[str, Any]] = parse_json,
) -> Request:
    """The parsed body of the current request. `read` parses the body's bytes.

    Limits how slowly the client may send and read. Afterwards, the request is inside the gate until
    `submit` or the end of the request. Raises BadRequest, BodyTimeout, ClientGone, TimedOut, Full.
    """
    if not flask.request.mimetype:  # a page of any origin may send such a body without a preflight
        origins.check(settings.cors_origins)
    client = Client(flask.request.environ)
    client.limit_sends(settings.send_timeout)
    with client.receiving(settings.body_timeout):
        data = read_bytes(settings.max_body_bytes)
    enter(gate, len(data), settings)
    check_values(data, settings.max_body_bytes)
    request = parse_body(read(data))
    if isinstance(request, Generation):
        return request.with_preset(settings.presets)
    return request


@contextlib.contextmanager
def inside(gate: Gate, size: int, settings: Settings) -> Iterator[None]:
    """Enters the gate with an input of `size` bytes that is not a request body.

    The input stays in the gate until `submit` or the end of the `with` block. Raises
    ClientGone, TimedOut, Full.
    """
    enter(gate, size, settings)
    try:
        yield
    finally:
        leave()


def enter(gate: Gate, size: int, settings: Settings) -> None:
    """Enters the gate, until `submit` or `leave`. Raises the same exceptions as `inside`."""
    place = gate.enter(size, patience(settings))
    setattr(flask.g, PLACE, place)

    def again(size: int) -> None:
        if flask.g.get(PLACE) is place and place.size < LARGE <= size:
            enter(gate, size, settings)

    setattr(flask.g, WEIGH, again)


def patience(settings: Settings) -> Callable[[], None]:
    """Returns a check to call during long waits. The check raises ClientGone or TimedOut for the
    current request.
    """
    client = WatchedClient(environ(), serves_half_closed=False)
    ahead = deadlines(settings.queue_timeout, settings.first_token_timeout, settings.total_timeout)

    def look() -> None:
        client.check()
        check(ahead, time.monotonic())

    return look


def leave() -> Place | None:
    """Leaves the gate, if the current request is inside. Returns the place that the request had in
    the gate.
    """
    place: Place | None = flask.g.pop(PLACE, None)
    if place is not None:
        place.leave()
    return place


@contextlib.contextmanager
def names_of(request: Named) -> Iterator[None]:
    """Within this context, errors use the client's names for parameters."""
    try:
        yield
    except engine.Rejected as error:
        error.param = request.names.get(error.param or "", error.param)
        raise


def submit(
    request: Generation,
    model: engine.Engine,
    prompts: Sequence[tuple[int, ...]],
    identifiers: Sequence[str],
    is_streamed: bool,
    settings: Settings,
    fit: Callable[[engine.Job], engine.Job] | None = None,
    wake: Callable[[], None] | None = None,
    account: Account | None = None,
) -> Submitted:
    """Submits the jobs of a request: `num_jobs` for each prompt, with `identifiers` in order.

    `fit` adapts each job. `wake` is passed to the stream. `account` is used if the current request
    has no account. Raises BadRequest, and the exceptions of `Engine.submit`.
    """
    if request.timeout and settings.total_timeout and request.timeout > settings.total_timeout:
        raise BadRequest(
            f"timeout: {request.timeout:g} seconds is more than the {settings.total_timeout:g}"
            " seconds that this server allows",
            "timeout",
        )
    account = account or account_of(environ())
    key = account.key if account is not None else None
    jobs = _jobs(request, model, prompts, identifiers, settings, key)
    if fit is not None:
        jobs = [fit(job) for job in jobs]
    interval = settings.heartbeat / NEWS
    stream = _submit(jobs, model, request, is_streamed, account, wake)
    place = leave()
    submitted = Submitted(
        stream,
        identifiers,
        deadlines(
            settings.queue_timeout,
            settings.first_token_timeout,
            request.timeout or settings.total_timeout,
            place.since if place is not None else None,
        ),
        prompt_tokens=sum(map(len, prompts)),
        request_id=request_id(),
        queued=partial(model.queued, max_age=interval),
        interval=interval if is_streamed and wake is None else math.inf,
    )
    told = (submitted.identifier, request_id(), len(jobs), request.user)
    logger.debug("%s, request %s: %d jobs for user %r", *told)
    return submitted


def _submit(
    jobs: Sequence[engine.Job],
    model: engine.Engine,
    request: Generation,
    is_streamed: bool,
    account: Account | None,
    wake: Callable[[], None] | None,
) -> engine.Stream:
    """Submits the jobs, and records them in the account if there is one."""
    if account is None:
        return model.submit(jobs, wake)
    account.reserve(jobs, request.num_jobs, jobs[0].kind, model.info.page_size)
    account.expect(model.config.name, jobs, request.num_jobs, is_streamed)
    try:
        stream = model.submit(jobs, wake, account.note)
    except BaseException:
        account.withdraw()
        raise
    account.submitted()
    return stream


def max_new_tokens(
    request: Generation,
    model: engine.Engine,
    prompt_tokens: int,
    settings: Settings,
    most: int | None = None,
) -> int:
    """The limit on new tokens for a prompt of `prompt_tokens` tokens.

    This is the request's own limit if the request sets one, otherwise the default. If
    `clamp_max_tokens` is on, a limit beyond the context is reduced, and the response names the
    parameter. `most`: the API key's limit. Raises PromptTooLong, or BadRequest.
    """
    asked = request.asked_tokens
    if most is not None and asked is not None and asked > most:
        asked = _cut(request, most, settings)
    limit, name = request.max_context or (model.max_tokens, "prompt")
    room = min(limit, model.max_tokens) - prompt_tokens
    clamps = settings.clamp_max_tokens and neutral.is_telling()
    if clamps and asked is not None and asked > room > 0:
        asked = room
        neutral.note(request.names["max_new_tokens"])
    wanted = model.max_new_tokens(prompt_tokens, asked)
    usual = request.usual_max_tokens
    if asked is None and usual is not None and model.config.default_max_tokens is None:
        wanted = min(wanted, usual)
    if most is not None:
        wanted = min(wanted, most)
    if asked is None and room > 0:
        return min(wanted, room)
    if wanted > room:
        raise engine.PromptTooLong(
            f"{prompt_tokens} prompt tokens and {wanted} new tokens exceed the limit of {limit}",
            name,
            prompt_tokens,
            wanted,
            limit,
        )
    return wanted


def _cut(request: Generation, most: int, settings: Settings) -> int:
    """Returns `most`, for a request that exceeds its API key's limit. Raises BadRequest unless
    `clamp_max_tokens` is on.
    """
    name = request.names["max_new_tokens"]
    if not (settings.clamp_max_tokens and neutral.is_telling()):
        raise BadRequest(f"{name}: this API key allows at most {most} new tokens", name)
    neutral.note(name)
    return most


def _jobs(
    request: Generation,
    model: engine.Engine,
    prompts: Sequence[tuple[int, ...]],
    identifiers: Sequence[str],
    settings: Settings,
    key: ApiKey | None,
) -> list[engine.Job]:
    """The jobs for the first prompt, then those for the next prompt, and so on. Raises
    PromptTooLong, BadRequest.
    """
    priority = request.priority
    most = None
    if key is not None:
        priority = priority_of(key, request.asked_priority)
        most = most_tokens(key, len(identifiers))
    limits = [max_new_tokens(request, model, len(prompt), settings, most) for prompt in prompts]
    client, owner = _whose(bool(settings.keys_file))
    jobs = []
    for i, identifier in enumerate(identifiers):
        prompt = prompts[i // request.num_jobs]
        choice = i % request.num_jobs
        limit = limits[i // request.num_jobs]
        job = request.job(
            identifier, prompt, limit, choice, model.config, client, owner, request_id()
        )
        jobs.append(replace(job, priority=priority, kind=type(request).__name__))
    return [request.tokenized(job, model.tokenizer, model.info.max_seq_len) for job in jobs]


def _whose(has_keys: bool) -> tuple[str, str]:
    """The client and the owner of the current request's jobs.

    For the host application's own jobs, both are HOST if the server has keys, and otherwise
    "local".
    """
    if not flask.has_request_context():
        return (HOST, HOST) if has_keys else ("local", "local")
    if has_keys and caller_of(flask.request) is None:
        return HOST, HOST
    return share_of(flask.request), owner_of(flask.request)


def environ() -> Mapping[str, Any]:
    """The environ of the current request. Empty on a thread of the host application that has no
    request, and therefore no client.
    """
    return flask.request.environ if flask.has_request_context() else {}
