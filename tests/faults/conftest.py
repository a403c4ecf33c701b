"""Real servers, as in tests/live, and clients that misbehave."""

import json
import pathlib
import socket

from tests.live.conftest import GUNICORN, ROOT, server, start

__all__ = ["SCRIPTED", "SLOWED", "open_request", "read_all", "server", "start"]

SCRIPTED = [*GUNICORN[:-1], str(ROOT / "tests" / "faults" / "scripted_conf.py")]
SLOWED = [*GUNICORN[:-1], str(ROOT / "tests" / "faults" / "slowed_conf.py")]


def children_of(pid):
    tasks = pathlib.Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def worker_of(server):
    """The process id of a server's worker."""
    [worker] = children_of(server.process.pid)
    return worker


def connections_of(port):
    """Sockets at this end that are neither listening nor only remembered."""
    lines = pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]
    ours = (line.split()[1:4] for line in lines)
    end, others = f":{port:04X}", ("0A", "06")
    return sum(local.endswith(end) and state not in others for local, _, state in ours)


def open_request(server, body, path="/v1/completions", **more):
    """A connection on which `body` has been asked for; keywords as for `request_bytes`."""
    connection = socket.socket()
    if "receive_buffer" in more:  # before connecting, or the window is already larger
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, more.pop("receive_buffer"))
    connection.settimeout(60)
    connection.connect(("127.0.0.1", server.port))
    connection.sendall(request_bytes(server, body, path, **more))
    return connection


def request_bytes(server, body, path="/v1/completions", headers=(), version="1.1"):
    data = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/{version}",
        f"Host: 127.0.0.1:{server.port}",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def read_all(connection):
    received = b""
    while part := connection.recv(65536):
        received += part
    return received
