"""tests/faults/scripted_conf.py with views that raise what is no Exception."""

from collections.abc import Iterator

import flask

from switchyard.server import conf
from tests.faults.scripted_conf import *  # noqa: F403


class Panic(BaseException):
    """As pyo3's PanicException."""


def at_once() -> str:
    raise Panic("at once")


def later() -> flask.Response:
    def pieces() -> Iterator[bytes]:
        yield b"some"
        raise Panic("later")

    return flask.Response(pieces())


def post_worker_init(worker):
    worker.wsgi.add_url_rule("/panic", view_func=at_once)
    worker.wsgi.add_url_rule("/panic/later", view_func=later)
    conf.post_worker_init(worker)
