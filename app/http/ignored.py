"""The `X-Switchyard-Ignored` header, which lists parameters of a request that had no effect. Runs
on request threads.
"""

import functools

import flask

from switchyard.app.request import neutral

HEADER = "X-Switchyard-Ignored"


def register(target: flask.Flask | flask.Blueprint, takes_unknown: bool) -> None:
    """Adds the header to all responses of an application or blueprint.

    `takes_unknown`: whether unknown parameters are listed there too, instead of being refused.
    """
    target.before_request(functools.partial(neutral.begin, takes_unknown))
    target.after_request(_say)
    target.teardown_request(lambda _: neutral.end())


def _say(response: flask.Response) -> flask.Response:
    if names := neutral.told():
        response.headers[HEADER] = names
    return response
