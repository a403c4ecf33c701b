"""Engines that requests submit to."""

from collections.abc import Callable

import flask

from switchyard import engine
from switchyard.app.delivery import submit
from switchyard.app.http.gate import Place
from switchyard.app.services import services

LEASES = "switchyard_leases"  # in flask.g


def model_of(name: str | None, meanwhile: Callable[[], None] = lambda: None) -> engine.Engine:
    """The engine that the current request for this model submits to, loaded for it where that has
    to be: outside the gate, with `meanwhile` called now and then. It isn't closed for another's
    sake until `release`. Raises engine.ModelNotFound, engine.Refused, ClientGone, TimedOut.
    """
    here = services()
    leases: dict[str | None, engine.Lease] = flask.g.setdefault(LEASES, {})
    if name in leases:
        return leases[name].engine
    place: Place | None = None
    look: Callable[[], None] | None = None

    def wait() -> None:
        nonlocal look, place
        look = look or submit.patience(here.settings)
        place = submit.leave() or place
        look()
        meanwhile()

    found = leases[name] = here.models.lease(name, wait)
    if place is not None:
        submit.enter(here.gate, place.size, here.settings)
    return found.engine


def release() -> None:
    """What the current request has leased: it submits nothing more."""
    for found in flask.g.pop(LEASES, {}).values():
        found.release()
