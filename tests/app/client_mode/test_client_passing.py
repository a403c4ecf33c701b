"""The API under a host's prefix in client mode: requests are passed through."""

import gzip
import socket
import time

import flask
import pytest

from switchyard import engine
from switchyard.app.delivery.watch import LOOK
from switchyard.app.exceptions import Unauthorized
from tests.app.client_mode.conftest import ENDLESS, error, text
from tests.app.conftest import wait_until_empty
from tests.scripted import ScriptedBackend, endless, ticking

COMPLETIONS = "/llm/v1/completions"
PASSED = {"url_prefix": "/llm"}


@pytest.mark.parametrize("kind", ["text/event-stream; charset=utf-8", "application/x-ndjson"])
def test_a_passed_stream_of_a_frozen_server_ends_with_an_error(frozen, make_remote, kind):
    visitor = make_remote(frozen(kind).url, heartbeat=0.05, **PASSED).test_client()
    body = {"prompt": "x", "stream": True}
    pieces = iter(visitor.post(COMPLETIONS, json=body, buffered=False).response)
    assert b'"a"' in next(pieces)
    with pytest.raises(engine.Closed, match="has sent nothing"):
        next(pieces)


def test_the_api_is_passed_through(behind):
    app, client = behind(of_host=PASSED)
    visitor = app.test_client()
    body = {"prompt": "x", "max_tokens": 3}
    answer = visitor.post(COMPLETIONS, json=body, headers={"X-Request-Id": "mine"})
    assert (answer.json["choices"][0]["text"], answer.headers["X-Request-Id"]) == ("0 1 2 ", "mine")
    streamed = visitor.post(COMPLETIONS, json={**body, "stream": True})
    assert streamed.mimetype == "text/event-stream"
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert visitor.get("/llm/v1/models?x=1").json == client.get("/v1/models").json
    bad = visitor.post(COMPLETIONS, json={"prompt": 3})
    assert (bad.status_code, bad.json["error"]["param"]) == (400, "prompt")
    assert visitor.get("/llm/../v1/models").status_code == 404
    assert visitor.get("/v1/models").status_code == 404


def test_a_visitor_who_leaves_what_is_passed_through_cancels_it(behind, connection, gate, ask):
    app, client = behind(ScriptedBackend(endless, gate=gate), PASSED, heartbeat=3600)
    body = {"prompt": "x", **ENDLESS, "stream": True}
    answers = ask(app.test_client(), body, COMPLETIONS, environ_overrides=connection.environ)
    gate.wait_until_held()
    connection.reset()
    assert answers.get(timeout=20).status_code == 499
    gate.open()
    wait_until_empty(client)


def test_a_passed_stream_that_is_closed_is_cancelled(behind):
    app, client = behind(ScriptedBackend(ticking), PASSED)
    body = {"prompt": "x", **ENDLESS, "stream": True}
    answer = app.test_client().post(COMPLETIONS, json=body, buffered=False)
    assert next(iter(answer.response))
    answer.close()
    wait_until_empty(client)


def test_a_visitor_is_neither_the_host_nor_an_operator(upstream, make_remote):
    server = upstream(*[(200, {}, b"{}")] * 2)
    app = make_remote(server.url, key="of-the-host", url_prefix="/llm")
    visitor = app.test_client()
    visitor.set_cookie("session", "1")
    got = visitor.get("/llm/v1/models?a=%2F&b=ä", headers={"Origin": "http://localhost"})
    headers = {"Authorization": "Bearer theirs", "Origin": "http://elsewhere"}
    hops = [("X-Forwarded-For", "10.0.0.7, 10.0.0.8"), ("X-Forwarded-For", "10.0.0.9")]
    app.test_client().get("/llm/v1/models", headers=[*headers.items(), *hops])
    assert [path for _, path, _ in server.asked] == ["/v1/models?a=%2F&b=%C3%A4", "/v1/models"]
    own, theirs = server.heads
    assert own["X-Request-Id"] == got.headers["X-Request-Id"]
    assert not {"Authorization", "Cookie", "Origin"} & {*own.keys()}
    assert own["X-Forwarded-For"] == "127.0.0.1" and "Via" in own
    assert (theirs["Authorization"], theirs["Origin"]) == ("Bearer theirs", "http://elsewhere")
    found = [hop.strip() for hop in theirs["X-Forwarded-For"].split(",")]
    assert found == ["10.0.0.7", "10.0.0.8", "10.0.0.9", "127.0.0.1"]


def test_the_host_s_key_and_hooks_are_its_own(upstream, make_remote, monkeypatch):
    server = upstream(error(401, "invalid_api_key"))
    monkeypatch.setenv("SWITCHYARD_KEY", "from-the-environment")
    monkeypatch.setenv("SWITCHYARD_URL", server.url)
    app = make_remote(None, url_prefix="/llm", before_request=lambda: ("no entry", 403))
    assert app.test_client().post(COMPLETIONS, json={}).text == "no entry"
    with pytest.raises(Unauthorized):
        app.switchyard.generate("x")
    assert server.told("Authorization") == ["Bearer from-the-environment"]


def test_the_limits_of_what_is_passed_through_are_the_application_s(visit, connection):
    visitor = visit(text("a"), send_timeout=7.5, max_body_bytes=99)
    assert visitor.post(COMPLETIONS, data=b" " * 100).status_code == 413
    visitor.post(COMPLETIONS, data=b"{}", environ_overrides=connection.environ)
    option = connection.server.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert option == 7500


def test_a_body_to_pass_on_must_arrive_within_the_application_s_time(visit, connection):
    with connection.server.makefile("rb") as nothing:
        sent = {"wsgi.input": nothing, "CONTENT_LENGTH": "9", **connection.environ}
        visitor = visit(body_timeout=0.1)
        response = visitor.post(COMPLETIONS, environ_overrides=sent)
    assert (response.status_code, response.json["error"]["code"]) == (408, "body_timeout")
    assert "within 0.1 seconds" in response.json["error"]["message"]


def test_an_answer_without_heartbeats_may_take_its_time(serve, make_remote, monkeypatch):
    monkeypatch.setattr("switchyard.app.host.wait.SILENCE", 0.1)
    server = flask.Flask("server")

    @server.post("/v1/completions")
    def complete():
        def body():
            yield "{"
            time.sleep(4 * LOOK)  # between two pieces, as long as the host looks a few times
            yield "}"

        return flask.Response(body(), mimetype="application/json")

    app = make_remote(serve(server), url_prefix="/llm", heartbeat=0.01)
    answer = app.test_client().post(COMPLETIONS, json={})
    assert (answer.status_code, answer.data) == (200, b"{}")
    app.switchyard.close()


def test_names_that_are_given_hold_for_what_is_passed_through(visit):
    seen = []
    hooks = {"before_request": lambda: seen.append(flask.request.host)}
    visitor = visit(text("a"), allowed_hosts=["mine.example"], **hooks)
    for host, status in (("other.example", 403), ("mine.example", 200)):
        response = visitor.post(COMPLETIONS, json={}, headers={"Host": host})
        assert response.status_code == status
    assert seen == ["mine.example"]  # of the first it isn't asked


def test_a_compressed_answer_is_passed_through_as_it_is(visit):
    body = gzip.compress(b'{"choices": []}')
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = visit((200, headers, body)).post(COMPLETIONS, json={"prompt": "x"})
    assert (answer.status_code, answer.headers.get("Content-Encoding")) == (200, "gzip")
    assert (answer.data, answer.headers["Content-Length"]) == (body, str(len(body)))


def test_the_passing_view_has_the_names_that_extensions_read(behind):
    app, _ = behind(ScriptedBackend(), PASSED)
    [view] = [view for name, view in app.view_functions.items() if name.endswith(".pass")]
    assert (view.__name__, view.__module__) == ("_pass", "switchyard.app.host.passing")


METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
OF_ONE_CONNECTION = (
    *("Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "TE", "Trailer"),
    *("Transfer-Encoding", "Upgrade", "Expect", "Server", "Date", "Forwarded", "X-Real-IP", "Via"),
)


@pytest.fixture
def echo(serve, make_remote):
    """A server that answers anything, a visitor of a host before it, and what the server sees."""
    seen = []
    server = flask.Flask("server")

    def answer(path):
        request = flask.request
        seen.append((request.method, request.path, [*request.headers], request.get_data()))
        return flask.Response("x", 207, {"X-Own": "1", "Set-Cookie": "mine=1"})

    server.add_url_rule(
        "/<path:path>", "any", answer, methods=METHODS, provide_automatic_options=False
    )
    app = make_remote(serve(server), url_prefix="/llm")
    yield app, seen
    app.switchyard.close()


def test_headers_of_one_connection_are_not_passed_on(echo):
    app, seen = echo
    own = {name: "of-the-visitor" for name in OF_ONE_CONNECTION}
    app.test_client().get("/llm/v1/models", headers={**own, "Accept": "a/b", "User-Agent": "c"})
    [(_, _, headers, _)] = seen
    passed = {name for name, value in headers if "of-the-visitor" in value}
    assert not passed and ("Accept", "a/b") in headers and ("User-Agent", "c") in headers


def test_a_visitor_s_answer_is_packed_only_if_the_visitor_asks_for_that(echo):
    app, seen = echo
    for packed in ("identity", "gzip"):
        app.test_client().get("/llm/v1/models", headers={"Accept-Encoding": packed})
    app.test_client().get("/llm/v1/models")
    assert [dict(one[2]).get("Accept-Encoding") for one in seen] == ["identity", "gzip", "identity"]
    assert "Accept" not in dict(seen[-1][2])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_passed_on(echo, method):
    app, seen = echo
    answer = app.test_client().open("/llm/v1/models/my%20own%3F%23%C3%A4", method=method, data=b"y")
    assert (answer.status_code, answer.headers["X-Own"]) == (207, "1")
    assert answer.data == (b"" if method == "HEAD" else b"x")
    assert [(one[0], one[1], one[3]) for one in seen] == [(method, "/v1/models/my own?#ä", b"y")]


@pytest.mark.parametrize("path", ["../v1/models", "v1/../../models", "v1/.."])
def test_no_path_leaves_the_servers_url(echo, path):
    app, seen = echo
    assert app.test_client().get(f"/llm/{path}").status_code == 404
    assert not seen


def test_no_visitor_gets_another_s_cookies(echo):
    app, seen = echo
    for _ in range(2):
        assert "mine" in app.test_client().get("/llm/v1/models").headers["Set-Cookie"]
    assert not any("Cookie" in dict(one[2]) for one in seen)


def test_what_the_server_says_of_another_place_is_the_visitor_s_to_follow(visit):
    elsewhere = "http://elsewhere.example/"
    headers = {"Location": elsewhere, "Keep-Alive": "x", "Trailer": "x", "Via": "x", "Upgrade": "x"}
    answer = visit((302, headers, b"")).post(COMPLETIONS, json={"prompt": "x"})
    assert (answer.status_code, answer.headers["Location"]) == (302, elsewhere)
    passed = {"Location", "Content-Length", "Content-Type", "X-Request-Id"}
    assert set(answer.headers.keys()) == passed


def test_without_a_limit_bodies_up_to_32_mib_are_passed_on(upstream, make_remote):
    server = upstream(text("a"))
    visitor = make_remote(server.url, url_prefix="/llm").test_client()
    long = {"prompt": "x" * (2 << 20)}
    assert visitor.post(COMPLETIONS, json=long).status_code == 200
    assert [body for _, _, body in server.asked] == [long]
    too_long = {"CONTENT_LENGTH": str((32 << 20) + 1)}
    response = visitor.post(COMPLETIONS, data=b"{}", environ_overrides=too_long)
    assert response.status_code == 413 and f"{32 << 20} bytes" in response.json["error"]["message"]
