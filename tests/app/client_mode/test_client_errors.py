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
from tests.app.client_mode.conftest import error, text

OTHERWISE = {  # docs/flask.md, client mode
    engine.InvalidJob: BadRequest,
    engine.ModelError: engine.Dead,
    **dict.fromkeys((engine.Loading, engine.Stalled, engine.Draining), engine.Refused),
}


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
        (error(400, "constraint_too_slow"), engine.ConstraintTooSlow),
        (error(500, "internal_error"), engine.Failure),
        (error(408, "queue_timeout"), TimedOut),
        (error(401, "invalid_api_key"), Unauthorized),
        ((502, {}, b"<html>Bad Gateway"), engine.Dead),
        ((504, {}, b""), engine.Dead),
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


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_error_of_the_engine_comes_back_as_it_was(upstream, make_remote, kind):
    status, _, code, _ = KINDS[kind]
    app = make_remote(upstream(error(status, code, **{"Retry-After": 600})).url)
    with pytest.raises(OTHERWISE.get(kind, kind)) as caught:
        app.switchyard.generate("x")
    assert type(caught.value) is OTHERWISE.get(kind, kind)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (401, "invalid_api_key", Unauthorized()),
        (403, "insufficient_permissions", NotPermitted("so it is")),
        (429, "too_many_failures", LimitReached("so it is", 600.0, "too_many_failures")),
        (408, "body_timeout", TimedOut("so it is", "body_timeout")),
        (499, "client_gone", ClientGone()),
        (422, "unsupported_parameter", BadRequest("so it is", None, "unsupported_parameter")),
    ],
)
def test_what_the_server_says_of_a_request_is_whole(upstream, make_remote, status, code, expected):
    app = make_remote(upstream(error(status, code, **{"Retry-After": 600})).url)
    with pytest.raises(type(expected)) as caught:
        app.switchyard.generate("x")
    assert (str(caught.value), vars(caught.value)) == (str(expected), vars(expected))


def test_a_parameter_at_fault_is_the_one_that_the_server_names(upstream, make_remote):
    told = {"message": "m", "param": "max_tokens", "code": "context_length_exceeded"}
    app = make_remote(upstream((400, {}, json.dumps({"error": told}).encode())).url)
    with pytest.raises(engine.PromptTooLong) as caught:
        app.switchyard.generate("x")
    assert caught.value.param == "max_tokens"


def test_a_proxy_says_when_to_come_again(upstream, make_remote):
    app = make_remote(upstream((502, {"Retry-After": "7"}, b"<html>Bad Gateway")).url)
    with pytest.raises(engine.Dead) as caught:
        app.switchyard.generate("x")
    assert caught.value.retry_after == 7


def test_a_date_in_retry_after_is_no_number_and_no_error(upstream, make_remote):
    date = {"Retry-After": "Wed, 25 Nov 2026 10:00:00 GMT"}
    app = make_remote(upstream(error(503, "model_failed", **date)).url)
    with pytest.raises(engine.Dead) as caught:
        app.switchyard.generate("x")
    assert caught.value.retry_after == RETRY


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


@pytest.mark.parametrize(
    ("code", "kind"), [("batch_failed", engine.BatchFailed), ("internal_error", engine.Failure)]
)
def test_a_failure_amid_the_text_is_raised(upstream, make_remote, code, kind):
    frame = {"error": {"message": "m", "type": "t", "param": None, "code": code}}
    body = text("a")[2].split(b"data: {")[1]
    body = b"data: {" + body + b"data: " + json.dumps(frame).encode() + b"\n\n"
    app = make_remote(upstream((200, {}, body)).url)
    with pytest.raises(kind):
        app.switchyard.generate("x")


@pytest.mark.parametrize("event", ["{", "5", '{"choices": [5]}', '{"usage": 5}', '{"error": 5}'])
def test_an_event_that_is_not_switchyard_s_is_a_failure_behind_the_text(
    upstream, make_remote, event
):
    body = text("a")[2].split(b"\n\n")[1] + b"\n\ndata: " + event.encode() + b"\n\n"
    stream = make_remote(upstream((200, {}, body)).url).switchyard.stream("x")
    assert next(stream) == "a"
    with pytest.raises(engine.Failure, match="is not Switchyard") as caught:
        next(stream)
    assert caught.value.__cause__


@pytest.mark.parametrize("length", [0, 1000], ids=["ended", "cut off"])
def test_a_server_that_is_lost_amid_the_text_is_an_error(upstream, make_remote, length):
    body = text("a")[2].split(b"\n\n")[1] + b"\n\n"
    headers = {"Content-Length": len(body) + length, "Connection": "close"}
    app = make_remote(upstream((200, headers, body)).url)
    with pytest.raises(engine.Closed) as caught:
        app.switchyard.generate("x")
    assert "127.0.0.1" not in str(caught.value)


def test_a_stream_of_a_frozen_server_ends_with_an_error(frozen, make_remote):
    stream = make_remote(frozen().url, heartbeat=0.05).switchyard.stream("x")
    assert next(stream) == "a"
    with pytest.raises(engine.Closed, match="has sent nothing"):
        next(stream)


def test_a_stream_may_be_silent_for_four_heartbeats(frozen, make_remote):
    app = make_remote(frozen().url, heartbeat=1.0)
    stream = app.switchyard.stream("x")
    assert next(stream) == "a"
    begin = time.monotonic()
    with pytest.raises(engine.Closed):
        next(stream)
    assert time.monotonic() - begin >= 4


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
    assert server.request_ids == ["mine", "mine"]
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
