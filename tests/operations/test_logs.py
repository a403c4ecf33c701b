"""The access log, and the form of all that the server prints."""

import json
import logging
import os
import queue
import signal
import stat
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import requests

from switchyard.app.operations import logs
from switchyard.app.operations.access import AccessLine
from switchyard.app.operations.account import Account
from switchyard.app.operations.logs import (
    JsonFormatter,
    TextFormatter,
    _AccessFile,
    _Listener,
    _ToListener,
    say,
)
from switchyard.app.operations.trace import parse_trace
from switchyard.engine.messages import Chunk, Failed, Finished, Prefill, Started
from tests.app.conftest import wait_until_empty
from tests.conftest import ROOT
from tests.faults.conftest import SCRIPTED
from tests.live.conftest import GUNICORN, Server
from tests.operations.conftest import KEYS, KeysFile, bearer, entry
from tests.scripted import Gate, ScriptedBackend, endless

URL = "/v1/completions"
SECRET = "the-words-of-a-user"
TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"


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


def timed(job):
    yield Started(job.identifier)
    yield Prefill(job.identifier, 4, 4, 1)
    for i in range(2):
        yield Chunk(job.identifier, SECRET, (i,))
    yield Finished(job.identifier, "length", 4, 2, 1)


def test_a_line_tells_all_of_a_request_and_nothing_that_is_secret(make_keyed, lines):
    client = make_keyed(ScriptedBackend(timed), access_log="-")
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


@pytest.mark.parametrize("way", ["iterator", "gunicorn"], indirect=True)
def test_a_stream_is_told_with_all_its_bytes(make_keyed, lines):
    client = make_keyed(ScriptedBackend(timed), access_log="-")
    body = {"prompt": "x", "max_tokens": 2, "stream": True}
    with client.post(URL, json=body, headers=bearer("ann")) as response:
        num_bytes = len(response.data)
    fields, _ = lines()
    assert (fields["stream"], fields["bytes"]) == (True, num_bytes)
    assert (fields["completion_tokens"], fields["finish_reason"]) == (2, "length")


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


def test_a_prompt_of_several_choices_counts_once(make_keyed, lines):
    client = make_keyed(ScriptedBackend(timed), access_log="-")
    body = {"prompt": ["x y z", "x"], "max_tokens": 2, "n": 3}
    with client.post(URL, json=body, headers=bearer("ann")) as response:
        usage = response.json["usage"]
    fields, _ = lines()
    assert fields["completion_tokens"] == usage["completion_tokens"] == 12
    assert fields["prompt_tokens"] == usage["prompt_tokens"] == 2 * 4


def test_a_request_that_was_cancelled_is_told_once_with_what_it_used(make_keyed, lines, gate):
    client = make_keyed(ScriptedBackend(endless, gate=gate), access_log="-")
    gate.step(4)
    body = {"prompt": [3, 4, 5], "max_tokens": 500, "stream": True}
    response = client.post(URL, json=body, headers=bearer("ann"))
    next(iter(response.response))
    for _ in range(4):
        gate.wait_until_held()
    response.close()
    gate.open()
    fields, _ = lines()
    wait_until_empty(client)
    assert (fields["status"], fields["finish_reason"]) == (200, "cancelled")
    assert fields["prompt_tokens"] == 3 and fields["completion_tokens"] >= 3


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
    ("path", "headers", "status", "route"),
    [
        (URL, {}, 401, URL),
        (URL, bearer("prom"), 403, URL),
        (f"/{KEYS['ann']}", {}, 404, "other"),
        (URL, {**bearer("ann"), "Host": "evil.example"}, 403, URL),
        ("/v1/streams/cmpl-1", bearer("ann"), 404, "/v1/streams/<identifier>"),
    ],
)
def test_refusals_are_told_by_their_route(make_keyed, lines, path, headers, status, route):
    client = make_keyed(ScriptedBackend(), access_log="-", allowed_hosts=["localhost"])
    method = "GET" if "streams" in path else "POST"
    with client.open(path, method=method, json={}, headers=headers) as response:
        assert response.status_code == status
    fields, text = lines()
    assert (fields["status"], fields["route"]) == (status, route)
    assert fields["prompt_tokens"] is None and KEYS["ann"] not in text


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


# Formats


def record_of(call):
    records = queue.SimpleQueue()
    logger = logging.getLogger("switchyard.test")
    handler = _ToListener(records)
    logger.addHandler(handler)
    try:
        call(logger)
    finally:
        logger.removeHandler(handler)
    return records.get()


def test_a_json_line_has_the_exception_apart(make_client):
    def fail(logger):
        try:
            raise ValueError("a\nb")
        except ValueError:
            logger.exception("%d went wrong", 1)

    client = make_client(ScriptedBackend())
    with client.application.test_request_context("/", headers={"X-Request-Id": "mine"}):
        record = record_of(fail)
    [line] = JsonFormatter().format(record).splitlines()
    told = json.loads(line)
    assert told["message"] == "1 went wrong"
    assert (told["level"], told["logger"]) == ("ERROR", "switchyard.test")
    assert told["request_id"] == "mine"
    assert told["exception"].startswith("Traceback") and told["exception"].endswith("a\nb")
    assert time.strptime(told["time"][:19], "%Y-%m-%dT%H:%M:%S") and told["time"][-1] == "Z"
    text = TextFormatter().format(record)
    assert "ERROR switchyard.test: 1 went wrong\nTraceback" in text


UNCAUGHT = """
import sys, threading
from switchyard.app.operations.logs import listen
listen("INFO", "json", "")
for end in (sys.exit, lambda: 1 / 0):
    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
raise OSError("at last")
"""


def test_what_nobody_catches_is_a_line_and_a_thread_that_ends_on_purpose_is_none():
    command = [sys.executable, "-c", UNCAUGHT]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    messages = [line["message"] for line in lines if line["level"] == "CRITICAL"]
    assert messages == ["uncaught: division by zero", "uncaught: at last"]


def test_the_listener_is_woken_once_for_access_lines_that_come_together(monkeypatch):
    class Keep(logging.Handler):
        def emit(self, record):
            written.put(record)

    def pause(seconds):
        paused.put(seconds)
        assert go_on.wait(20)

    def log(message):
        records.put(logging.LogRecord("x", logging.INFO, "", 0, message, None, None))

    monkeypatch.setattr(logs.time, "sleep", pause)
    records, written, paused = queue.SimpleQueue(), queue.Queue(), queue.Queue()
    go_on = threading.Event()
    listener = _Listener(records, Keep())
    listener.start()
    log("all else is written at once")
    written.get(timeout=20)
    assert paused.empty()
    line = AccessLine({}, "HTTP/1.1", 0.0)
    log(line)
    assert 0 < paused.get(timeout=20) <= 0.1 and written.empty()
    for _ in range(3):
        log(line)
    go_on.set()
    listener.stop()
    assert written.qsize() == 4 and paused.empty()


def test_arguments_are_read_when_they_are_logged():
    things = ["first"]
    record = record_of(lambda logger: logger.error("%s", things))
    things.append("later")
    assert json.loads(JsonFormatter().format(record))["message"] == "['first']"


# A real server


@pytest.fixture
def start_logged(tmp_path, model_path):
    servers = []

    def start(command=SCRIPTED, **settings):
        path = KeysFile(tmp_path / "keys.toml").write(entry("ann")).path
        settings = {"keys_file": path, "model": model_path, **settings}
        servers.append(Server(command, tmp_path, **settings))
        return servers[-1].wait_until_ready()

    yield start
    for server in servers:
        server.stop()


def post(server, **more):
    body = {"prompt": SECRET, "max_tokens": 3, **more}
    return requests.post(f"{server.url}{URL}", json=body, headers=bearer("ann"), timeout=60)


def test_all_that_a_server_prints_is_json(start_logged):
    server = start_logged(GUNICORN, log_format="json", access_log="-")
    assert post(server).status_code == 200
    streamed = post(server, stream=True)
    assert streamed.status_code == 200
    server.process.send_signal(signal.SIGHUP)  # refused, in gunicorn's own log
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.output.splitlines() if not by_torch(line)]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    loggers = {line["logger"] for line in lines}
    assert {"gunicorn.error", "switchyard.server", "switchyard.access"} <= loggers
    told = [line for line in lines if line["logger"] == "switchyard.access"]
    told.sort(key=lambda line: line["stream"])  # one may end while the other begins
    assert [line["stream"] for line in told] == [False, True]
    assert told[1]["bytes"] == len(streamed.content)  # written by the sender, in part
    assert all(line["key"] == "ann" and line["completion_tokens"] == 3 for line in told)
    assert SECRET not in server.output and KEYS["ann"] not in server.output


def by_torch(line):
    """exllamav2's own print, where torch has no GPU."""
    return not line.strip() or line.startswith(" ## Warning")


def test_a_log_that_is_renamed_goes_on_in_another_file(start_logged, tmp_path):
    path = tmp_path / "access.log"
    server = start_logged(access_log=str(path), log_level="ERROR")
    assert post(server).status_code == 200
    wait_for_lines(path, 1)
    path.rename(tmp_path / "access.log.1")
    assert post(server).status_code == 200
    wait_for_lines(path, 1)
    [line] = path.read_text().splitlines()
    assert line.startswith("127.0.0.1 - ann [") and "completion_tokens=3" in line
    assert server.stop() == 0
    assert "completion_tokens" not in server.output


def test_the_audit_goes_to_stderr_whatever_the_level(start_logged):
    server = start_logged(log_level="ERROR")
    for headers in (bearer("wrong"), {}):
        url = f"{server.url}/v1/models"
        assert requests.get(url, headers=headers, timeout=60).status_code == 401
    assert server.stop() == 0
    assert "switchyard.audit: address:127.0.0.1: wrong API keys: 1\n" in server.output


def wait_for_lines(path, count):
    deadline = time.monotonic() + 20
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_log_that_cannot_be_opened_ends_the_start(tmp_path, model_path):
    server = Server(GUNICORN, tmp_path, model=model_path, access_log=tmp_path / "no" / "where")
    assert server.process.wait(120) == 3
    assert "switchyard: setting access_log: " in server.output
