"""The header that names what a request asked for nothing by. Request threads."""

import functools

import flask

from switchyard.app.request import neutral

HEADER = "X-Switchyard-Ignored"


def register(target: flask.Flask | flask.Blueprint, takes_unknown: bool) -> None:
    """Have all answers of an application, or of one blueprint, say it. `takes_unknown`: also of
    fields that nobody knows, instead of a refusal.
    """
    target.before_request(functools.partial(neutral.begin, takes_unknown))
    target.after_request(_say)
    target.teardown_request(lambda _: neutral.end())


def _say(response: flask.Response) -> flask.Response:
    if names := neutral.told():
        response.headers[HEADER] = names
    return response
