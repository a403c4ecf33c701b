"""The header that names what a request asked for nothing by. Request threads."""

import flask

from switchyard.app.request import neutral

HEADER = "X-Switchyard-Ignored"


def register(target: flask.Flask | flask.Blueprint) -> None:
    """Have all answers of an application, or of one blueprint, say it."""
    target.before_request(neutral.begin)
    target.after_request(_say)


def _say(response: flask.Response) -> flask.Response:
    if names := neutral.told():
        response.headers[HEADER] = names
    return response
