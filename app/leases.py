"""Leases, with which a request holds the engines that run its jobs. Runs on request threads."""

from collections.abc import Callable

import flask

from switchyard import engine
from switchyard.app.delivery import submit
from switchyard.app.http.gate import Place
from switchyard.app.operations.account import account_of
from switchyard.app.services import services

LEASES = "switchyard_leases"  # name in flask.g


def model_of(name: str | None, meanwhile: Callable[[], None] = lambda: None) -> engine.Engine:
    """The engine of a model, leased for the current request. If `name` is None, this is the
    default model's engine.

    A model that isn't loaded is loaded first. During the load, the request leaves the gate, and
    regularly calls `meanwhile`. The engine is not evicted until `release`. Raises
    engine.ModelNotFound, engine.Refused, ClientGone, TimedOut.
    """
    here = services()
    leases: dict[str | None, engine.Lease] = flask.g.setdefault(LEASES, {})
    if name in leases:
        return leases[name].engine
    # Records the model for the account's end, even if the request is refused.
    if account := account_of(submit.environ()):
        account.model = here.models.get(name).config.name
    place: Place | None = None
    look: Callable[[], None] | None = None

    def wait() -> None:
        nonlocal look, place
        here.threads.prepared()
        look = look or submit.patience(here.settings)
        place = submit.leave() or place
        look()
        meanwhile()

    found = leases[name] = here.models.lease(name, wait)
    if place is not None:
        submit.enter(here.gate, place.size, here.settings)
    return found.engine


def release() -> None:
    """Ends all leases of the current request, which must submit no more jobs."""
    for found in flask.g.pop(LEASES, {}).values():
        found.release()
