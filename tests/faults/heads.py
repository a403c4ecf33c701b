"""Heads of requests, as bytes."""

import contextlib
import socket

import pytest
from gunicorn.config import Config

from switchyard.server.connection import Connection
from switchyard.server.threads.request_threads import RequestThreads
from tests.faults.conftest import SCRIPTED
from tests.live.conftest import ROOT

HASTY = [*SCRIPTED[:-1], str(ROOT / "tests" / "faults" / "hasty_conf.py")]
NUM_THREADS, MAX_SLOW = 12, 6


def head(*lines, length=None):
    first = ("POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json")
    more = () if length is None else (f"Content-Length: {length}",)
    return "\r\n".join((*first, *more, *lines)).encode() + b"\r\n\r\n"


@contextlib.contextmanager
def make_connection(sent=b""):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(sent)
        yield Connection(Config(), ours, "", "", RequestThreads(NUM_THREADS, 4))


@pytest.fixture
def connection():
    with make_connection() as connection:
        yield connection
