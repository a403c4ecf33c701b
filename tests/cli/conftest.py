"""The command in an empty directory, and servers for it."""

import http.server
import json
import os
import threading

import pytest
from click.testing import CliRunner

from switchyard.cli import main
from tests.app.client_mode.conftest import serve
from tests.app.conftest import make_client, way
from tests.operations.conftest import clock, keys_file, make_keyed
from tests.operations.ledgers import fill, follow, make_counted, path, wall

__all__ = ["clock", "fill", "follow", "keys_file", "make_client", "make_counted", "make_keyed"]
__all__ += ["path", "serve", "wall", "way"]


@pytest.fixture
def switchyard(tmp_path, monkeypatch):
    """Run it in an empty directory, with no settings of this one."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SWITCHYARD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SWITCHYARD_BIND", "127.0.0.1:0")
    return lambda *arguments, **more: CliRunner().invoke(main, [*map(str, arguments)], **more)


class Answers(http.server.ThreadingHTTPServer):
    """Answers with `status`, if any, and with what `bodies` has for a method and path, or else
    `body`. Notes methods, paths and bodies in `asked`, headers in `heads`.
    """

    def __init__(self, status, body):
        self.status, self.body, self.bodies = status, body, {}
        self.asked, self.heads = [], []
        super().__init__(("127.0.0.1", 0), Answering)
        self.url = f"http://127.0.0.1:{self.server_port}"


class Answering(http.server.BaseHTTPRequestHandler):
    def answer(self):
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.server.asked.append((self.command, self.path, json.loads(body or "null")))
        self.server.heads.append(self.headers)
        if self.server.status:
            self.send_response(self.server.status)
            self.end_headers()
        place = self.command, self.path.partition("?")[0]
        self.wfile.write(self.server.bodies.get(place, self.server.body))

    do_GET = do_POST = do_PUT = do_DELETE = answer

    def log_message(self, *_):
        pass


@pytest.fixture
def answering():
    made = []

    def make(status=200, body=b""):
        server = Answers(status, body)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        made.append((server, thread))
        return server

    yield make
    for server, thread in made:
        server.shutdown()
        thread.join(20)
        server.server_close()
