"""The access log: a line for each request."""

import functools
import logging
import os
import queue
import stat
import sys
import threading
from types import SimpleNamespace

import pytest

from switchyard.app.exceptions import BudgetSpent, TimedOut
from switchyard.app.operations.account import ACCOUNT, Account
from switchyard.app.operations.logs import _AccessFile, say
from switchyard.app.operations.trace import parse_trace
from switchyard.app.services import KEY
from switchyard.engine.messages import Chunk, Failed, Started
from tests.operations.conftest import KEYS, bearer
from tests.operations.ledgers import timed
from tests.scripted import Gate, ScriptedBackend, endless

URL = "/v1/completions"
SECRET = "the-words-of-a-user"
TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
telling = functools.partial(timed, text=SECRET)


@pytest.fixture
def lines():
    """The fields of each line, in order, as they come."""
    found = queue.Queue()

    class Keep(logging.Handler):
        def emit(self, record):
            found.put((record.msg.fields, str(record.msg)))

    logger, handler = logging.getLogger("switchyard.access"), Keep()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lambda: found.get(timeout=20)
    logger.removeHandler(handler)
    logger.setLevel(level)
    assert found.empty()


def test_a_line_tells_all_of_a_request_and_nothing_that_is_secret(make_keyed, lines):
    client = make_keyed(ScriptedBackend(telling), access_log="-")
    headers = {
        **bearer("ann"),
        "User-Agent": 'agent "1"\x01',
        "X-Request-Id": "mine",
        "traceparent": f"00-{TRACE}-{SPAN}-01",
    }
    body = {"prompt": f"{SECRET}", "max_tokens": 2, "user": SECRET}
    with client.post(f"{URL}?note={SECRET}", json=body, headers=headers) as response:
        num_bytes = len(response.data)
    fields, text = lines()
    assert 0 <= fields.pop("queue_ms") <= fields.pop("ttft_ms") <= fields.pop("duration_ms")
    assert fields == {
        "request_id": "mine",
        "remote": "127.0.0.1",
        "key": "ann",
        "method": "POST",
        "route": URL,
        "status": 200,
        "code": None,
        "model": "scripted",
        "stream": False,
        "prompt_tokens": response.json["usage"]["prompt_tokens"],
        "cached_tokens": 1,
        "completion_tokens": 2,
        "finish_reason": "length",
        "id": response.json["id"],
        "bytes": num_bytes,
        "trace_id": TRACE,
        "span_id": SPAN,
        "user_agent": 'agent "1"\x01',
    }
    assert text.startswith("127.0.0.1 - ann [")
    assert f'] "POST {URL} HTTP/1.1" 200 {num_bytes} "-" "agent \\"1\\"\\u0001" ' in text
    assert "request_id=mine" in text and "\n" not in text
    for secret in (SECRET, KEYS["ann"], "note"):
        assert secret not in text


def test_of_a_long_user_agent_the_begin_is_told(make_client, lines):
    client = make_client(ScriptedBackend(), access_log="-")
    client.get("/v1/models", headers={"User-Agent": "agent " * 100}).close()
    assert lines()[0]["user_agent"] == ("agent " * 100)[:200]


def test_a_file_has_its_line_with_its_bytes_and_a_head_none(make_client, lines):
    client = make_client(ScriptedBackend(), access_log="-")
    for method in ("GET", "HEAD"):
        with client.open("/docs/index.css", method=method) as response:
            assert response.content_length > 100
            num_bytes = len(response.data)
        assert lines()[0]["bytes"] == num_bytes


@pytest.mark.parametrize("way", ["iterator", "gunicorn"], indirect=True)
def test_a_stream_is_told_with_all_its_bytes(make_keyed, lines):
    client = make_keyed(ScriptedBackend(telling), access_log="-")
    body = {"prompt": "x", "max_tokens": 2, "stream": True}
    with client.post(URL, json=body, headers=bearer("ann")) as response:
        num_bytes = len(response.data)
    fields, _ = lines()
    assert (fields["stream"], fields["bytes"]) == (True, num_bytes)
    assert (fields["completion_tokens"], fields["finish_reason"]) == (2, "length")


@pytest.mark.parametrize("way", ["gunicorn"], indirect=True)
def test_what_the_sender_has_written_counts_as_sent(make_client, lines, held, handed_over):
    client = make_client(held(telling), access_log="-")
    response = client.post(URL, json={"prompt": "x", "max_tokens": 2, "stream": True})
    assert handed_over.acquire(timeout=20)
    held.set()
    num_bytes = len(response.data)
    response.close()
    assert lines()[0]["bytes"] == num_bytes


def test_a_stream_that_is_left_is_told_with_the_bytes_that_were_sent(make_keyed, lines):
    client = make_keyed(ScriptedBackend(endless), access_log="-")
    body = {"prompt": "x", "max_tokens": 1900, "stream": True}
    with client.post(URL, json=body, headers=bearer("ann"), buffered=False) as response:
        pieces = response.iter_encoded()
        num_bytes = len(next(pieces)) + len(next(pieces))
    fields, _ = lines()
    assert (fields["stream"], fields["bytes"]) == (True, num_bytes)


def test_what_a_page_gets_of_the_status_is_told_with_its_bytes(make_client, lines):
    client = make_client(ScriptedBackend(), access_log="-")
    with client.get("/ui/status") as response:
        data = response.data
    fields, _ = lines()
    assert (fields["route"], fields["bytes"]) == ("/ui/status", len(data))


def test_a_line_of_the_servers_own_is_written_in_one_piece(monkeypatch):
    """Or a line of another thread would come before its end."""
    writes = []
    stream = SimpleNamespace(write=writes.append, flush=lambda: None)
    monkeypatch.setattr(sys, "stdout", stream)
    say("served", "text")
    assert writes == ["served\n"]


def test_the_access_log_is_not_for_everybody(tmp_path):
    path = tmp_path / "access.log"
    before = os.umask(0o022)
    _AccessFile(path).close()
    os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_prompt_counts_whole_once_and_what_further_choices_compute_of_it(make_keyed, lines):
    client = make_keyed(ScriptedBackend(telling), access_log="-")
    body = {"prompt": ["x y z", "x"], "max_tokens": 2, "n": 3}
    with client.post(URL, json=body, headers=bearer("ann")) as response:
        usage = response.json["usage"]
    fields, _ = lines()
    assert fields["completion_tokens"] == usage["completion_tokens"] == 12
    assert fields["prompt_tokens"] == 3 * usage["prompt_tokens"] - 2 * 2  # one of each is cached


def test_a_request_that_failed_is_told_with_what_it_used(make_keyed, lines):
    def failing(job):
        yield Started(job.identifier)
        yield Chunk(job.identifier, "x", (0, 1))
        yield Failed(job.identifier, RuntimeError(SECRET))

    client = make_keyed(ScriptedBackend(failing), access_log="-")
    body = {"prompt": [3, 4, 5], "max_tokens": 5}
    with client.post(URL, json=body, headers=bearer("ann")) as response:
        assert response.status_code == 500
    fields, text = lines()
    assert (fields["status"], fields["finish_reason"]) == (500, "failed")
    assert (fields["prompt_tokens"], fields["completion_tokens"]) == (3, 2)
    assert SECRET not in text


@pytest.mark.parametrize(
    ("path", "headers", "status", "code", "route"),
    [
        (URL, {}, 401, "invalid_api_key", URL),
        (URL, bearer("prom"), 403, "insufficient_permissions", URL),
        (URL, bearer("ann"), 400, "missing_required_parameter", URL),
        (f"/{KEYS['ann']}", {}, 404, None, "other"),
        (URL, {**bearer("ann"), "Host": "evil.example"}, 403, None, URL),
        ("/v1/streams/cmpl-1", bearer("ann"), 404, None, "/v1/streams/<identifier>"),
    ],
)
def test_refusals_are_told_by_route_and_code(make_keyed, lines, path, headers, status, code, route):
    client = make_keyed(ScriptedBackend(), access_log="-", allowed_hosts=["localhost"])
    method = "GET" if "streams" in path else "POST"
    with client.open(path, method=method, json={}, headers=headers) as response:
        assert response.status_code == status
    fields, text = lines()
    assert (fields["status"], fields["code"], fields["route"]) == (status, code, route)
    assert f" code={code or '-'} " in text
    assert fields["prompt_tokens"] is None and KEYS["ann"] not in text


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (BudgetSpent("no tokens are left"), 429, "insufficient_quota"),
        (TimedOut("late", "queue_timeout"), 408, "queue_timeout"),
        (ZeroDivisionError(), 500, "internal_error"),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Exception) else None,
)
def test_a_generation_of_a_connection_is_told_by_its_error(make_client, lines, error, status, code):
    app = make_client(ScriptedBackend(), access_log="-").application
    with app.test_request_context("/v1/stream") as context:
        environ = context.request.environ
        environ[ACCOUNT] = Account(app.extensions[KEY].guard._recorders)
        with pytest.raises(type(error)), app.extensions[KEY].guard.generation(environ):
            raise error
    fields, _ = lines()
    assert (fields["status"], fields["code"]) == (status, code)


def test_health_is_left_out_and_so_is_all_without_the_setting(make_client, make_keyed, lines):
    client = make_client(ScriptedBackend(), access_log="-")
    for path in ("/health", "/health/ready", "/ping", "/v1/health/live", "/"):
        client.get(path).close()
    client.get("/v1/models").close()
    fields, _ = lines()
    assert (fields["route"], fields["key"]) == ("/v1/models", None)
    make_keyed(ScriptedBackend()).get("/v1/models", headers=bearer("ann")).close()
    client = make_client(ScriptedBackend())
    client.get("/v1/models").close()
    assert "switchyard.account" not in client.get("/v1/models").request.environ


def test_the_line_is_written_by_neither_the_engines_thread_nor_the_sender(make_keyed, monkeypatch):
    writers = queue.Queue()
    close = Account._close

    def note(account):
        writers.put(threading.current_thread().name)
        close(account)

    monkeypatch.setattr(Account, "_close", note)
    gate = Gate()
    client = make_keyed(ScriptedBackend(endless, gate=gate), access_log="-")
    gate.step(3)
    body = {"prompt": "x", "max_tokens": 5, "stream": True}
    response = client.post(URL, json=body, headers=bearer("ann"))
    next(iter(response.response))
    response.close()
    gate.open()
    assert writers.get(timeout=20) == "alarms"


@pytest.mark.parametrize(
    ("header", "is_good"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f" 00-{TRACE}-{SPAN}-00 ", True),
        (f"cc-{TRACE}-{SPAN}-01-more", True),
        (f"00-{TRACE}-{SPAN}-01-more", False),
        (f"ff-{TRACE}-{SPAN}-01", False),
        (f"00-{'0' * 32}-{SPAN}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"00-{TRACE.upper()}-{SPAN}-01", False),
        (f"00-{TRACE}-{SPAN}", False),
        ("", False),
        (None, False),
    ],
)
def test_a_traceparent_counts_as_w3c_has_it(header, is_good):
    assert parse_trace(header) == ((TRACE, SPAN) if is_good else None)
