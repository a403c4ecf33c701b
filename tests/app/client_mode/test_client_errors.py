"""What client mode raises: refusals, failures, lost servers, and waits for room."""

import json
import socket
import threading
import time
from types import SimpleNamespace

import flask
import pytest

from switchyard import engine
from switchyard.app import BadRequest, ClientGone, TimedOut
from switchyard.app.errors import KINDS
from switchyard.app.exceptions import BudgetSpent, LimitReached, NotPermitted, Unauthorized
from switchyard.app.host import patient
from switchyard.app.host.upstream import RETRY
from tests.app.client_mode.conftest import BEGUN, error, text

OTHERWISE = {  # docs/flask.md, client mode
    engine.InvalidJob: BadRequest,
    engine.ModelError: engine.Dead,
    **dict.fromkeys((engine.Loading, engine.Stalled, engine.Draining), engine.Refused),
}
LATER = {"Retry-After": 600}
DATE = "Wed, 25 Nov 2026 10:00:00 GMT"


@pytest.mark.parametrize(
    ("arguments", "kind", "param"),
    [
        ({"prompt": "x", "stream": True}, BadRequest, "stream"),
        ({"prompt": "x", "temperature": "warm"}, BadRequest, "temperature"),
        ({"prompt": "x", "timeout": "soon"}, BadRequest, "timeout"),
        ({"prompt": "x", "timeout": -1}, BadRequest, "timeout"),
        ({"prompt": "x", "no_such": 1}, BadRequest, "no_such"),
        ({"messages": []}, BadRequest, "messages"),
        ({"prompt": "x", "temperature": object()}, BadRequest, None),
        ({"prompt": "x " * 3000, "max_tokens": 5}, engine.PromptTooLong, "prompt"),
        ({"prompt": "x", "model": "no_such"}, engine.ModelNotFound, "model"),
    ],
)
def test_what_the_server_refuses_is_raised(behind, arguments, kind, param):
    app, _ = behind()
    with pytest.raises(kind) as caught:
        app.switchyard.generate(**arguments)
    assert caught.value.param == param


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_error_of_the_engine_comes_back_as_it_was(remote, kind):
    status, _, code, _ = KINDS[kind]
    with pytest.raises(OTHERWISE.get(kind, kind)) as caught:
        remote(error(status, code, **LATER)).generate("x")
    assert type(caught.value) is OTHERWISE.get(kind, kind)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (error(429, "queue_full", **LATER), engine.Full("so it is", 600.0)),
        (
            error(429, "rate_limit_exceeded", **LATER),
            LimitReached("so it is", 600.0, "rate_limit_exceeded"),
        ),
        (
            error(429, "too_many_failures", **LATER),
            LimitReached("so it is", 600.0, "too_many_failures"),
        ),
        (error(429, "insufficient_quota", **LATER), BudgetSpent("so it is")),
        (error(401, "invalid_api_key"), Unauthorized()),
        (error(403, "insufficient_permissions"), NotPermitted("so it is")),
        (error(408, "body_timeout"), TimedOut("so it is", "body_timeout")),
        (error(408, "queue_timeout"), TimedOut("so it is", "queue_timeout")),
        (error(499, "client_gone"), ClientGone()),
        (
            error(422, "unsupported_parameter"),
            BadRequest("so it is", None, "unsupported_parameter"),
        ),
        (error(500, "internal_error"), engine.Failure("so it is")),
    ],
)
def test_what_the_server_says_of_a_request_is_whole(remote, answer, expected):
    with pytest.raises(type(expected)) as caught:
        remote(answer).generate("x")
    assert (str(caught.value), vars(caught.value)) == (str(expected), vars(expected))


@pytest.mark.parametrize(
    ("answer", "kind", "retry_after"),
    [
        ((502, {}, b"<html>Bad Gateway"), engine.Dead, RETRY),
        ((502, {"Retry-After": "7"}, b"<html>Bad Gateway"), engine.Dead, 7),
        ((504, {}, b""), engine.Dead, RETRY),
        ((404, {}, b"<html>"), engine.Failure, None),
        (error(503, "model_failed", **{"Retry-After": DATE}), engine.Dead, RETRY),
    ],
)
def test_what_a_proxy_answers_is_an_error_without_its_address(remote, answer, kind, retry_after):
    with pytest.raises(kind) as caught:
        remote(answer).generate("x")
    assert getattr(caught.value, "retry_after", None) == retry_after
    assert "127.0.0.1" not in str(caught.value)


def test_a_parameter_at_fault_is_the_one_that_the_server_names(remote):
    told = {"message": "m", "param": "max_tokens", "code": "context_length_exceeded"}
    with pytest.raises(engine.PromptTooLong) as caught:
        remote((400, {}, json.dumps({"error": told}).encode())).generate("x")
    assert caught.value.param == "max_tokens"


@pytest.mark.parametrize("is_streamed", [False, True], ids=["at once", "amid text"])
def test_a_deadline_tells_what_was_used_until_then(remote, is_streamed):
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    told = {"message": "too late", "code": "total_timeout", "usage": usage}
    body = json.dumps({"error": told}).encode()
    with pytest.raises(TimedOut) as caught:
        remote((200, {}, b"data: %b\n\n" % body) if is_streamed else (408, {}, body)).generate("x")
    assert (caught.value.code, caught.value.usage) == ("total_timeout", usage)


@pytest.mark.parametrize(
    ("code", "kind"), [("batch_failed", engine.BatchFailed), ("internal_error", engine.Failure)]
)
def test_a_failure_amid_the_text_is_raised(remote, code, kind):
    failure = b"data: " + error(500, code)[2] + b"\n\n"
    with pytest.raises(kind):
        remote((200, {}, BEGUN + failure)).generate("x")


@pytest.mark.parametrize("event", ["{", "5", '{"choices": [5]}', '{"usage": 5}', '{"error": 5}'])
def test_an_event_that_is_not_switchyard_s_is_a_failure_behind_the_text(remote, event):
    stream = remote((200, {}, BEGUN + b"data: " + event.encode() + b"\n\n")).stream("x")
    assert next(stream) == "a"
    with pytest.raises(engine.Failure, match="is not Switchyard") as caught:
        next(stream)
    assert caught.value.__cause__


@pytest.mark.parametrize("length", [0, 1000], ids=["ended", "cut off"])
def test_a_server_that_is_lost_amid_the_text_is_an_error(remote, length):
    headers = {"Content-Length": len(BEGUN) + length, "Connection": "close"}
    with pytest.raises(engine.Closed) as caught:
        remote((200, headers, BEGUN)).generate("x")
    assert "127.0.0.1" not in str(caught.value)


@pytest.mark.parametrize(("heartbeat", "least"), [(0.05, 0), (1.0, 4)])
def test_a_stream_of_a_server_that_is_silent_for_four_heartbeats_ends(
    frozen, make_remote, heartbeat, least
):
    stream = make_remote(frozen().url, heartbeat=heartbeat).switchyard.stream("x")
    assert next(stream) == "a"
    begin = time.monotonic()
    with pytest.raises(engine.Closed, match="has sent nothing"):
        next(stream)
    assert time.monotonic() - begin >= least


def test_the_time_between_two_reads_is_no_silence_of_the_server(serve, make_remote, monkeypatch):
    late, go_on = [0.0], threading.Event()
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + late[0])
    monkeypatch.setattr(patient, "time", clock)
    server = flask.Flask("server")

    @server.post("/v1/completions")
    def complete():
        events = text("a", "b")[2]
        cut = events.index(b'"b"')

        def body():
            yield events[:cut]
            assert go_on.wait(20)
            yield events[cut:]

        return flask.Response(body(), mimetype="text/event-stream")

    with make_remote(serve(server)).switchyard as switchyard:
        stream = switchyard.stream("x")
        assert next(stream) == "a"
        late[0] = 1000.0
        go_on.set()
        assert list(stream) == ["b"]


def test_a_server_that_is_not_there_is_an_error_at_once(make_remote, caplog):
    with socket.create_server(("127.0.0.1", 0)) as place:
        url = f"http://127.0.0.1:{place.getsockname()[1]}"
    app = make_remote(url, url_prefix="/llm")
    with pytest.raises(engine.Dead) as caught:
        app.switchyard.generate("x")
    assert str(caught.value) == "the models' server can't be reached"
    assert "refused" in str(caught.value.__cause__) and url in caplog.text
    answer = app.test_client().get("/llm/generate?prompt=secret")
    assert answer.json["error"]["message"] == "the models' server can't be reached"
    assert (answer.status_code, answer.json["error"]["code"]) == (503, "model_failed")
    assert caplog.text.count("Connection refused") == 2 and "secret" not in caplog.text


@pytest.mark.parametrize(
    ("status", "code"), [(503, "overloaded"), (429, "queue_full"), (429, "rate_limit_exceeded")]
)
def test_a_server_without_room_is_asked_again_when_it_says(upstream, make_remote, status, code):
    server = upstream(error(status, code, **{"Retry-After": 0.3}), text("a", "b"))
    app = make_remote(server.url)
    with app.test_request_context(headers={"X-Request-Id": "mine"}):
        assert app.switchyard.generate("x", timeout=20).text == "ab"
    assert server.told("X-Request-Id") == ["mine", "mine"]
    first, second = (body["timeout"] for _, _, body in server.asked)
    assert 20 >= first > first - 0.3 >= second > 10


def test_it_is_not_asked_beyond_the_request_s_time(remote):
    switchyard = remote(error(503, "overloaded", **{"Retry-After": 20}))
    with pytest.raises(engine.Refused) as caught:
        switchyard.generate("x", timeout=10)
    assert caught.value.retry_after == 20
    switchyard = remote(error(429, "queue_full", **{"Retry-After": 20}), queue_timeout=10)
    with pytest.raises(engine.Full):
        switchyard.generate("x")
