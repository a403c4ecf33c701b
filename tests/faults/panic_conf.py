"""tests/faults/scripted_conf.py with views: some raise what is no Exception, one counts garbage."""

import gc
from collections.abc import Iterator

import flask

from switchyard.server import conf
from tests.faults.scripted_conf import *  # noqa: F403
from tests.scripted import Panic


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
    worker.wsgi.add_url_rule("/threshold", view_func=lambda: str(gc.get_threshold()[0]))
    conf.post_worker_init(worker)
