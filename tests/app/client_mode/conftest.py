"""A host application in client mode, and servers for it: real ones, and scripted answers."""

import http.server
import json
import queue
import threading

import flask
import pytest
import werkzeug.serving

from switchyard.app import Switchyard
from tests.scripted import ScriptedBackend

ENDLESS = {"max_tokens": 1900}


class QuietHandler(werkzeug.serving.WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_):
        pass


@pytest.fixture
def listen():
    """Has a server listen until the test's end."""
    servers = []

    def listen(server):
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
        return server

    yield listen
    for server, thread in servers:
        server.shutdown()
        thread.join(20)
        server.server_close()


@pytest.fixture
def serve(listen):
    """An application at its own address."""

    def serve(app):
        server = werkzeug.serving.make_server(
            "127.0.0.1", 0, app, threaded=True, request_handler=QuietHandler
        )
        server.daemon_threads = True
        return f"http://127.0.0.1:{listen(server).port}"

    return serve


@pytest.fixture
def make_remote():
    """A host application with the extension in client mode."""
    made = []

    def make(url, **more):
        app = flask.Flask("host")
        app.switchyard = Switchyard(app, url=url, **more)
        made.append(app.switchyard)
        return app

    yield make
    for switchyard in made:
        switchyard.close()


@pytest.fixture
def remote(make_remote, upstream):
    """The extension of a host whose server gives these answers."""
    return lambda *answers, **more: make_remote(upstream(*answers).url, **more).switchyard


@pytest.fixture
def visit(make_remote, upstream):
    """A visitor of a host with the API of a server that gives these answers."""

    def visit(*answers, **more):
        return make_remote(upstream(*answers).url, url_prefix="/llm", **more).test_client()

    return visit


@pytest.fixture
def behind(make_client, serve, make_remote):
    """A host application before a server over a scripted backend, and that server's client."""
    hosts = []

    def behind(backend=None, of_host=None, **settings):
        client = make_client(backend or ScriptedBackend(), **settings)
        app = make_remote(serve(client.application), **(of_host or {}))
        hosts.append(app)
        return app, client

    yield behind
    for app in hosts:  # before the server, whose connections end with them
        app.switchyard.close()


class Upstream(http.server.ThreadingHTTPServer):
    """Answers by a script: (status, headers, body), or None for a connection that just ends.
    `asked` has methods, paths and bodies, `heads` headers.
    """

    daemon_threads = True

    def __init__(self, *answers):
        self.answers = queue.SimpleQueue()
        for answer in answers:
            self.answers.put(answer)
        self.asked, self.heads, self.connections = [], [], set()
        self.ended = queue.SimpleQueue()  # addresses of connections
        super().__init__(("127.0.0.1", 0), UpstreamHandler)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def answer_to(self, method, path):
        return self.answers.get(timeout=20)

    def told(self, name):
        """A header, of all that was asked."""
        return [head[name] for head in self.heads]


class UpstreamHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 20

    def answer(self):
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.server.asked.append((self.command, self.path, json.loads(body or "null")))
        self.server.heads.append(self.headers)
        self.server.connections.add(self.client_address)
        answer = self.server.answer_to(self.command, self.path)
        if answer is None:
            self.close_connection = True
            return
        status, headers, body = answer
        if status:
            self.send_response(status)
            for name, value in {"Content-Length": len(body), **headers}.items():
                self.send_header(name, str(value))
            self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = answer

    def finish(self):
        super().finish()
        self.server.ended.put(self.client_address)

    def log_message(self, *_):
        pass


@pytest.fixture
def upstream(listen):
    return lambda *answers: listen(Upstream(*answers))


@pytest.fixture
def frozen(upstream, monkeypatch):
    """Makes a server that begins a stream, and says nothing more."""
    monkeypatch.setattr("switchyard.app.host.wait.SILENCE", 0.5)

    def make(kind="text/event-stream"):
        headers = {"Content-Type": kind, "Content-Length": len(BEGUN) + 1000}
        return upstream((200, headers, BEGUN))

    return make


def error(status, code, **headers):
    body = {"error": {"message": "so it is", "type": "t", "param": None, "code": code}}
    return status, headers, json.dumps(body).encode()


def text(*pieces):
    choices = [{"choices": [{"text": piece, "finish_reason": None}]} for piece in pieces]
    choices.append({"choices": [{"text": "", "finish_reason": "stop"}]})
    choices.append({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
    frames = [b"data: " + json.dumps(body).encode() for body in choices]
    return 200, {}, b"\n\n".join([b": heartbeat", *frames, b"data: [DONE]", b""])


BEGUN = text("a")[2].split(b"\n\n")[1] + b"\n\n"  # a stream that lacks its end
