"""TLS by gunicorn itself: its connections are read in gunicorn's own way, on request threads."""

import contextlib
import os
import socket
import ssl
import subprocess
import sys

import pytest

from tests.faults.conftest import read_all, request_bytes
from tests.faults.heads import HASTY
from tests.live.conftest import Server, run_command


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_path):
    """With a second for the head of a request."""
    directory = tmp_path_factory.mktemp("tls")
    key, certificate = str(directory / "key.pem"), str(directory / "certificate.pem")
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost"]
    command = [*new, *names, "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    files = ["--keyfile", key, "--certfile", certificate]
    server = Server([*HASTY, *files], directory, model=model_path)
    server.certificate = certificate
    server.wait_to_say("Switchyard serves")
    yield server
    assert server.stop() == 0, server.output


def test_commands_know_it_as_a_switchyard(server, model_path):
    bind, url = f"127.0.0.1:{server.port}", f"https://localhost:{server.port}"
    for arguments, settings, ended, says in (
        (["check", "--bind", bind], {}, 0, "already used by a Switchyard server: stop"),
        (["status"], {"SWITCHYARD_BIND": bind}, 1, "if the server has TLS, use --url https://"),
        (["status", "--url", url], {}, 1, "SSL_CERT_FILE=FILE"),
        (["status", "--url", url], {"SSL_CERT_FILE": server.certificate}, 0, "ready"),
    ):
        done = run_command(*arguments, SWITCHYARD_MODEL=model_path, **settings)
        assert done.returncode == ended and says in done.stdout + done.stderr, done


@pytest.mark.parametrize("is_there", [True, False])
def test_a_container_knows_that_it_is_ready(server, is_there):
    bind = f"127.0.0.1:{server.port if is_there else 1}"
    command = [sys.executable, "deploy/container/healthy.py"]
    done = subprocess.run(command, env={**os.environ, "SWITCHYARD_BIND": bind}, timeout=60)
    assert (done.returncode == 0) == is_there


@pytest.fixture
def connection(server):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    plain = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    with context.wrap_socket(plain) as connection:
        yield connection


def test_a_whole_answer_may_take_longer_than_a_head(server, connection):
    body = {"prompt": "x", "max_tokens": 120}  # 1.2 seconds
    connection.sendall(request_bytes(server, body, headers=["Connection: close"]))
    answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"completion_tokens":120' in answer and b'"finish_reason":"length"' in answer


def test_a_head_that_never_ends_is_given_up(connection):
    connection.sendall(b"GET /health/live HTTP/1.1\r\nX-Slow: ")
    with contextlib.suppress(ssl.SSLError):  # TLS may be ended in its own way, or just so
        assert b" 200 " not in read_all(connection)
