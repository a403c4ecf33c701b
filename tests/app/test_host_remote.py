"""A host application whose models are a server's: client mode, over real sockets."""

import gc
import gzip
import http.server
import json
import os
import queue
import socket
import threading
import time

import flask
import pytest
import werkzeug.serving

from switchyard import engine
from switchyard.app import BadRequest, ClientGone, SettingsError, Switchyard, TimedOut
from switchyard.app.exceptions import BudgetSpent, LimitReached, Unauthorized
from tests.app.conftest import wait_until_empty
from tests.conftest import run_code
from tests.scripted import Gate, ScriptedBackend, endless, ticking

ENDLESS = {"max_tokens": 1900}
CHAT = [{"role": "user", "content": "hello"}]


class QuietHandler(werkzeug.serving.WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_):
        pass


@pytest.fixture
def serve():
    """An application at an address of its own."""
    servers = []

    def serve(app):
        server = werkzeug.serving.make_server(
            "127.0.0.1", 0, app, threaded=True, request_handler=QuietHandler
        )
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.port}"

    yield serve
    for server, thread in servers:
        server.shutdown()
        thread.join(20)
        server.server_close()


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
    """Answers by a script: (status, headers, body), or None for a connection that just ends."""

    daemon_threads = True

    def __init__(self, answers):
        self.answers = queue.SimpleQueue()
        for answer in answers:
            self.answers.put(answer)
        self.bodies = []
        self.keys = []
        self.connections = set()
        super().__init__(("127.0.0.1", 0), UpstreamHandler)
        self.url = f"http://127.0.0.1:{self.server_port}"


class UpstreamHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 20

    def do_POST(self):
        length = int(self.headers["Content-Length"])
        self.server.bodies.append(json.loads(self.rfile.read(length)))
        self.server.connections.add(self.client_address)
        self.server.keys.append(self.headers["Authorization"])
        answer = self.server.answers.get(timeout=20)
        if answer is None:
            self.close_connection = True
            return
        status, headers, body = answer
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def upstream():
    made = []

    def make(*answers):
        made.append(Upstream(answers))
        thread = threading.Thread(target=made[-1].serve_forever)
        thread.start()
        made.append(thread)
        return made[-2]

    yield make
    for server, thread in zip(made[::2], made[1::2], strict=True):
        server.shutdown()
        thread.join(20)
        server.server_close()


def error(status, code, **headers):
    body = {"error": {"message": "so it is", "type": "t", "param": None, "code": code}}
    return status, headers, json.dumps(body).encode()


def text(*pieces):
    choices = [{"choices": [{"text": piece, "finish_reason": None}]} for piece in pieces]
    choices.append({"choices": [{"text": "", "finish_reason": "stop"}]})
    choices.append({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
    frames = [b"data: " + json.dumps(body).encode() for body in choices]
    return 200, {}, b"\n\n".join([b": heartbeat", *frames, b"data: [DONE]", b""])


def test_a_completion_is_the_server_s(behind):
    app, client = behind()
    result = app.switchyard.generate("x", max_tokens=3)
    body = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 3}).json
    assert (result.text, result.finish_reason) == ("0 1 2 ", "length")
    assert result.prompt_tokens == body["usage"]["prompt_tokens"]
    assert result.completion_tokens == 3


def test_neither_a_proxy_of_the_environment_nor_its_passwords_are_used(
    upstream, make_remote, monkeypatch, tmp_path
):
    """Which are about what the host application itself asks of the internet."""
    passwords = tmp_path / "netrc"
    passwords.write_text("machine 127.0.0.1 login somebody password secret\n")
    passwords.chmod(0o600)
    monkeypatch.setenv("NETRC", str(passwords))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    first, proxy = upstream(text("a", "b")), upstream(error(502, "proxied"))
    monkeypatch.setenv("http_proxy", proxy.url)
    app = make_remote(first.url, key="own")
    assert app.switchyard.generate("x").text == "ab"
    assert (first.keys, proxy.keys) == (["Bearer own"], [])


def test_messages_go_to_the_chat_s_endpoint(behind):
    app, client = behind()
    result = app.switchyard.generate(messages=CHAT, max_tokens=4)
    body = client.post("/v1/chat/completions", json={"messages": CHAT, "max_tokens": 4}).json
    assert result.text == body["choices"][0]["message"]["content"]


def test_a_stream_s_pieces_come_as_they_are_generated(behind):
    gate = Gate()
    app, _ = behind(ScriptedBackend(gate=gate), heartbeat=0.05)
    stream = app.switchyard.stream("x", max_tokens=3)
    gate.step(2)
    assert next(stream) == "0 "
    gate.step(1)
    assert next(stream) == "1 "
    gate.open()
    assert list(stream) == ["2 "]
    assert stream.result.text == "0 1 2 "


@pytest.mark.parametrize("leave", [lambda s: s.close(), lambda s: None], ids=["close", "drop"])
def test_who_leaves_a_stream_cancels_it_on_the_server(behind, leave):
    app, client = behind(ScriptedBackend(ticking))
    stream = app.switchyard.stream("x", **ENDLESS)
    source = stream._source  # which the end of its last reference would close, too
    next(stream)
    leave(stream)
    del stream
    gc.collect()
    wait_until_empty(client)
    source.close()


def ask_from(app, connection, errors):
    """`generate` in a view whose client is at the other end of `connection`."""

    def run():
        with app.test_request_context("/", environ_overrides=connection.environ):
            try:
                errors.put(app.switchyard.generate("x", **ENDLESS))
            except Exception as error:
                errors.put(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_visitor_who_leaves_before_the_answer_begins_is_noticed(behind, connection):
    gate = Gate()
    app, client = behind(ScriptedBackend(endless, gate=gate), heartbeat=3600)
    errors = queue.Queue()
    thread = ask_from(app, connection, errors)
    gate.wait_until_held()  # its job is there, and no byte of its answer
    connection.reset()
    assert isinstance(errors.get(timeout=20), ClientGone)
    gate.open()
    thread.join(20)
    wait_until_empty(client)


def test_a_visitor_who_leaves_amid_tokens_is_noticed(behind, connection):
    backend = ScriptedBackend(ticking)
    app, client = behind(backend)
    errors = queue.Queue()
    thread = ask_from(app, connection, errors)
    while not backend.num_chunks:
        thread.join(0.01)
    connection.reset()
    assert isinstance(errors.get(timeout=20), ClientGone)
    thread.join(20)
    wait_until_empty(client)


@pytest.mark.parametrize(
    ("arguments", "kind", "param"),
    [
        ({"prompt": "x", "stream": True}, BadRequest, "stream"),
        ({"prompt": "x", "temperature": "warm"}, BadRequest, "temperature"),
        ({"prompt": "x", "no_such": 1}, BadRequest, "no_such"),
        ({"messages": []}, BadRequest, "messages"),
        ({"prompt": "x", "temperature": object()}, BadRequest, None),
        ({"prompt": "x " * 3000, "max_tokens": 5}, engine.PromptTooLong, "prompt"),
        ({"prompt": "x", "model": "no_such"}, engine.ModelNotFound, None),
    ],
)
def test_what_the_server_refuses_is_raised(behind, arguments, kind, param):
    app, _ = behind()
    with pytest.raises(kind) as caught:
        app.switchyard.generate(**arguments)
    if kind is not engine.ModelNotFound:
        assert caught.value.param == param


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (error(429, "queue_full", **{"Retry-After": 600}), engine.Full),
        (error(429, "rate_limit_exceeded", **{"Retry-After": 600}), LimitReached),
        (error(429, "insufficient_quota", **{"Retry-After": 600}), BudgetSpent),
        (error(503, "overloaded", **{"Retry-After": 600}), engine.Refused),
        (error(503, "model_failed", **{"Retry-After": 1}), engine.Dead),
        (error(503, "model_unloaded", **{"Retry-After": 1}), engine.Unloaded),
        (error(500, "job_failed"), engine.JobFailed),
        (error(500, "internal_error"), engine.Failure),
        (error(408, "queue_timeout"), TimedOut),
        (error(401, "invalid_api_key"), Unauthorized),
        ((502, {}, b"<html>Bad Gateway"), engine.Dead),
        ((404, {}, b"<html>"), engine.Failure),
    ],
)
def test_errors_are_those_of_the_own_process(upstream, make_remote, answer, kind):
    app = make_remote(upstream(answer).url)
    with pytest.raises(kind) as caught:
        app.switchyard.generate("x")
    assert "127.0.0.1" not in str(caught.value)
    if isinstance(caught.value, engine.Full | LimitReached):
        assert caught.value.retry_after == 600


@pytest.mark.parametrize("is_streamed", [False, True], ids=["at once", "amid text"])
def test_a_deadline_tells_what_was_used_until_then(upstream, make_remote, is_streamed):
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    told = {"message": "too late", "code": "total_timeout", "usage": usage}
    body = json.dumps({"error": told}).encode()
    app = make_remote(
        upstream((200, {}, b"data: %b\n\n" % body) if is_streamed else (408, {}, body)).url
    )
    with pytest.raises(TimedOut) as caught:
        app.switchyard.generate("x")
    assert (caught.value.code, caught.value.usage) == ("total_timeout", usage)


def test_a_failure_amid_the_text_is_raised(upstream, make_remote):
    frame = {"error": {"message": "m", "type": "t", "param": None, "code": "batch_failed"}}
    body = text("a")[2].split(b"data: {")[1]
    body = b"data: {" + body + b"data: " + json.dumps(frame).encode() + b"\n\n"
    app = make_remote(upstream((200, {}, body)).url)
    with pytest.raises(engine.BatchFailed):
        app.switchyard.generate("x")


@pytest.mark.parametrize("length", [0, 1000], ids=["ended", "cut off"])
def test_a_server_that_is_lost_amid_the_text_is_an_error(upstream, make_remote, length):
    body = text("a")[2].split(b"\n\n")[1] + b"\n\n"
    headers = {"Content-Length": len(body) + length, "Connection": "close"}
    app = make_remote(upstream((200, headers, body)).url)
    with pytest.raises(engine.Closed) as caught:
        app.switchyard.generate("x")
    assert "127.0.0.1" not in str(caught.value)


@pytest.fixture
def frozen(upstream, monkeypatch):
    """The URL of a server that begins a stream, and says nothing more."""
    monkeypatch.setattr("switchyard.app.host.wait.SILENCE", 0.5)
    body = text("a")[2].split(b"\n\n")[1] + b"\n\n"
    headers = {"Content-Type": "text/event-stream", "Content-Length": len(body) + 1000}
    return upstream((200, headers, body)).url


def test_a_stream_of_a_frozen_server_ends_with_an_error(frozen, make_remote):
    stream = make_remote(frozen, heartbeat=0.05).switchyard.stream("x")
    assert next(stream) == "a"
    with pytest.raises(engine.Closed, match="has said nothing"):
        next(stream)


def test_a_passed_stream_of_a_frozen_server_ends_with_an_error(frozen, make_remote):
    app = make_remote(frozen, heartbeat=0.05, url_prefix="/llm")
    body = {"prompt": "x", "stream": True}
    answer = app.test_client().post("/llm/v1/completions", json=body, buffered=False)
    pieces = iter(answer.response)
    assert b'"a"' in next(pieces)
    with pytest.raises(engine.Closed, match="has said nothing"):
        next(pieces)


def test_a_stream_may_be_silent_for_four_heartbeats(frozen, make_remote):
    app = make_remote(frozen, heartbeat=1.0)
    stream = app.switchyard.stream("x")
    assert next(stream) == "a"
    begin = time.monotonic()
    with pytest.raises(engine.Closed):
        next(stream)
    assert time.monotonic() - begin >= 4


def test_a_server_that_is_not_there_is_an_error_at_once(make_remote, caplog):
    with socket.create_server(("127.0.0.1", 0)) as place:
        url = f"http://127.0.0.1:{place.getsockname()[1]}"
    app = make_remote(url, url_prefix="/llm")
    with pytest.raises(engine.Dead) as caught:
        app.switchyard.generate("x")
    assert str(caught.value) == "the models' server can't be reached"
    assert "refused" in str(caught.value.__cause__) and url in caplog.text
    answer = app.test_client().get("/llm/v1/models")
    assert answer.json["error"]["message"] == "the models' server can't be reached"
    assert (answer.status_code, answer.json["error"]["code"]) == (503, "model_failed")


def test_a_server_without_room_is_asked_again_when_it_says(upstream, make_remote):
    server = upstream(error(503, "overloaded", **{"Retry-After": 0.3}), text("a", "b"))
    app = make_remote(server.url)
    assert app.switchyard.generate("x", timeout=20).text == "ab"
    first, second = (body["timeout"] for body in server.bodies)
    assert 20 >= first > first - 0.3 >= second > 10


def test_it_is_not_asked_beyond_the_request_s_time(upstream, make_remote):
    server = upstream(error(503, "overloaded", **{"Retry-After": 20}))
    app = make_remote(server.url)
    with pytest.raises(engine.Refused) as caught:
        app.switchyard.generate("x", timeout=10)
    assert (caught.value.retry_after, len(server.bodies)) == (20, 1)
    app = make_remote(
        upstream(error(429, "queue_full", **{"Retry-After": 20})).url, queue_timeout=10
    )
    with pytest.raises(engine.Full):
        app.switchyard.generate("x")


def test_connections_are_used_again(upstream, make_remote):
    server = upstream(text("a"), error(400, "invalid_value"), text("b"))
    app = make_remote(server.url)
    assert app.switchyard.generate("x").text == "a"
    with pytest.raises(BadRequest):
        app.switchyard.generate("x")
    assert app.switchyard.generate("x").text == "b"
    assert len(server.connections) == 1


def test_a_connection_that_the_server_has_ended_meanwhile_is_no_error(upstream, make_remote):
    server = upstream(text("a"), None, text("b"))
    app = make_remote(server.url)
    assert app.switchyard.generate("x").text == "a"
    assert app.switchyard.generate("x").text == "b"


def test_what_a_fresh_connection_has_carried_is_not_asked_again(upstream, make_remote):
    server = upstream(None, text("b"))
    app = make_remote(server.url)
    with pytest.raises(engine.Closed) as caught:
        app.switchyard.generate("x")
    assert str(caught.value) == "the models' server has closed the connection"
    assert len(server.bodies) == 1


def test_a_fork_has_connections_of_its_own(upstream, make_remote):
    server = upstream(text("a"), text("b"), text("c"))
    app = make_remote(server.url)
    assert app.switchyard.generate("x").text == "a"
    pid = os.fork()
    if pid == 0:
        os._exit(app.switchyard.generate("x").text != "b")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert app.switchyard.generate("x").text == "c"
    assert len(server.connections) == 2


def test_what_was_closed_begins_anew_by_start(behind):
    app, _ = behind()
    with app.switchyard:
        app.switchyard.generate("x", max_tokens=1)
    with pytest.raises(engine.Dead, match="closed"):
        app.switchyard.generate("x")
    app.switchyard.start()
    assert app.switchyard.generate("x", max_tokens=1).text == "0 "


def test_the_api_is_passed_through(behind):
    app, client = behind(of_host={"url_prefix": "/llm"})
    visitor = app.test_client()
    body = {"prompt": "x", "max_tokens": 3}
    answer = visitor.post("/llm/v1/completions", json=body, headers={"X-Request-Id": "mine"})
    assert (answer.json["choices"][0]["text"], answer.headers["X-Request-Id"]) == ("0 1 2 ", "mine")
    streamed = visitor.post("/llm/v1/completions", json={**body, "stream": True})
    assert streamed.mimetype == "text/event-stream"
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert visitor.get("/llm/v1/models?x=1").json == client.get("/v1/models").json
    bad = visitor.post("/llm/v1/completions", json={"prompt": 3})
    assert (bad.status_code, bad.json["error"]["param"]) == (400, "prompt")
    assert visitor.get("/llm/../v1/models").status_code == 404
    assert visitor.get("/v1/models").status_code == 404


def test_a_visitor_who_leaves_what_is_passed_through_cancels_it(behind, connection):
    gate = Gate()
    app, client = behind(
        ScriptedBackend(endless, gate=gate), of_host={"url_prefix": "/llm"}, heartbeat=3600
    )
    statuses = queue.Queue()

    def run():
        answer = app.test_client().post(
            "/llm/v1/completions",
            json={"prompt": "x", **ENDLESS, "stream": True},
            environ_overrides=connection.environ,
        )
        statuses.put(answer.status_code)

    thread = threading.Thread(target=run)
    thread.start()
    gate.wait_until_held()
    connection.reset()
    assert statuses.get(timeout=20) == 499
    gate.open()
    thread.join(20)
    wait_until_empty(client)


def test_a_passed_stream_that_is_closed_is_cancelled(behind):
    app, client = behind(ScriptedBackend(ticking), of_host={"url_prefix": "/llm"})
    body = {"prompt": "x", **ENDLESS, "stream": True}
    answer = app.test_client().post("/llm/v1/completions", json=body, buffered=False)
    assert next(iter(answer.response))
    answer.close()
    wait_until_empty(client)


def test_a_visitor_is_neither_the_host_nor_an_operator(serve, make_remote):
    seen = []
    server = flask.Flask("server")

    @server.get("/v1/models")
    def models():
        seen.append(dict(flask.request.headers))
        return {}

    app = make_remote(serve(server), key="of-the-host", url_prefix="/llm")
    visitor = app.test_client()
    visitor.set_cookie("session", "1")
    visitor.get("/llm/v1/models", headers={"Origin": "http://localhost"})
    headers = {"Authorization": "Bearer theirs", "Origin": "http://elsewhere"}
    hops = [("X-Forwarded-For", "10.0.0.7, 10.0.0.8"), ("X-Forwarded-For", "10.0.0.9")]
    app.test_client().get("/llm/v1/models", headers=[*headers.items(), *hops])
    app.switchyard.close()
    own, theirs = seen
    assert not {"Authorization", "Cookie", "Origin"} & own.keys()
    assert own["X-Forwarded-For"] == "127.0.0.1" and "Via" in own
    assert (theirs["Authorization"], theirs["Origin"]) == ("Bearer theirs", "http://elsewhere")
    found = [hop.strip() for hop in theirs["X-Forwarded-For"].split(",")]
    assert found == ["10.0.0.7", "10.0.0.8", "10.0.0.9", "127.0.0.1"]


def test_the_host_s_key_and_hooks_are_its_own(upstream, make_remote, monkeypatch):
    monkeypatch.setenv("SWITCHYARD_KEY", "from-the-environment")
    server = upstream(error(401, "invalid_api_key"))
    monkeypatch.setenv("SWITCHYARD_URL", server.url)
    app = make_remote(None, url_prefix="/llm", before_request=lambda: ("no entry", 403))
    assert app.test_client().post("/llm/v1/completions", json={}).text == "no entry"
    with pytest.raises(Unauthorized):
        app.switchyard.generate("x")
    assert server.keys == ["Bearer from-the-environment"]


def test_settings_of_models_have_no_effect_and_are_refused(make_remote):
    with pytest.raises(SettingsError, match="model has no effect"):
        make_remote("http://127.0.0.1:1", model="/models/mine")
    for url in ("127.0.0.1:8000", "http://", "ftp://a"):
        with pytest.raises(SettingsError, match="url"):
            make_remote(url)
    with pytest.raises(RuntimeError, match="not of this process"):
        make_remote("http://127.0.0.1:1").switchyard.models.get()


def test_no_engine_is_there():
    run_code(
        "import flask, sys, threading\n"
        "from switchyard import Switchyard\n"
        "switchyard = Switchyard(flask.Flask('x'), url='http://127.0.0.1:1', url_prefix='/llm')\n"
        "try: switchyard.generate('x')\n"
        "except Exception as error: print(error)\n"
        "assert not {'torch', 'exllamav2'} & set(sys.modules)\n"
        "assert threading.active_count() == 1"
    )


def test_a_compressed_answer_is_passed_through_as_it_is(upstream, make_remote):
    body = gzip.compress(b'{"choices": []}')
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    app = make_remote(upstream((200, headers, body)).url, url_prefix="/llm")
    answer = app.test_client().post("/llm/v1/completions", json={"prompt": "x"})
    assert (answer.status_code, answer.headers.get("Content-Encoding")) == (200, "gzip")
    assert answer.data == body
