"""Reports inputs that cause more work than their size suggests. Runs on request threads."""

import flask

WEIGH = "switchyard_weigh"  # name in flask.g while an input is inside the gate

# The work for a character of a JSON schema, in characters of a prompt: 6 us versus 0.25 us.
SCHEMA = 24


def weigh(size: int) -> None:
    """Reports that the current request's input is as much work as an input of `size` bytes. Waits
    until the gate has room for that much work. Raises the same exceptions as `Gate.enter`. Does
    nothing outside a request.
    """
    enter = flask.g.get(WEIGH) if flask.has_app_context() else None
    if enter is not None:
        enter(size)
