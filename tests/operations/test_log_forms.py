"""The form of all that the server prints."""

import json
import logging
import queue
import signal
import subprocess
import sys
import threading
import time

import pytest
import requests

from switchyard.app.operations import logs
from switchyard.app.operations.access import AccessLine, AccessLog
from switchyard.app.operations.account import Account, Consumption
from switchyard.app.operations.logs import JsonFormatter, TextFormatter, _Listener, _ToListener
from tests.conftest import ROOT, wait_for
from tests.faults.conftest import SCRIPTED
from tests.live.conftest import GUNICORN
from tests.operations.conftest import KEYS, KeysFile, bearer, entry
from tests.scripted import ScriptedBackend

URL = "/v1/completions"
SECRET = "the-words-of-a-user"


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
import logging, sys, threading, warnings
from switchyard.app.operations.logs import listen
listen("INFO", "json", "")
logging.getLogger("switchyard.engine").info("warm")
warnings.warn("old")
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
    assert [line["message"] for line in lines if line["level"] == "INFO"] == ["warm"]
    messages = [line["message"] for line in lines if line["level"] == "CRITICAL"]
    assert messages == ["uncaught exception: division by zero", "uncaught exception: at last"]
    [told] = [line for line in lines if line["level"] == "WARNING"]
    assert told["logger"] == "py.warnings" and "UserWarning: old" in told["message"]


@pytest.mark.parametrize(("is_error", "level"), [(True, "ERROR"), (False, "INFO")])
def test_a_line_of_the_servers_own_has_its_level_and_stream(capsys, is_error, level):
    logs.say("here", "json", is_error)
    told = capsys.readouterr()
    line = json.loads(told.err if is_error else told.out)
    assert (line["message"], line["level"]) == ("here", level)


def test_the_access_logs_file_has_its_lines_alone(tmp_path):
    handler = logs._file(str(tmp_path / "access.log"))
    for name in ("switchyard.engine", "switchyard.access"):
        handler.handle(logging.LogRecord(name, logging.INFO, "", 0, name, None, None))
    handler.close()
    assert (tmp_path / "access.log").read_text() == "switchyard.access\n"


def test_a_line_of_text_has_local_time_and_quotes_what_would_divide_it(zone):
    told = {"remote": "::1", "key": None, "method": "GET", "route": "/", "status": 200, "bytes": 3}
    told |= {"user_agent": None, "id": "a-1", "model": "my model", "agent": "a\x07b", "name": "ä"}
    told |= {"stream": False, "cached_tokens": 0, "code": None}
    hours = {"EAST-14": "14:00:00 +1400", "WEST12": "12:00:00 -1200"}[zone]
    day = "01/Jan/1970" if zone == "EAST-14" else "31/Dec/1969"
    assert str(AccessLine(told, "HTTP/1.1", 0.0)) == (
        f'::1 - - [{day}:{hours}] "GET / HTTP/1.1" 200 3 "-" "-"'
        ' id=a-1 model="my model" agent="a\\u0007b" name="\\u00e4"'
        " stream=false cached_tokens=0 code=-"
    )


@pytest.mark.parametrize(("seconds", "told"), [(0.0, "1970-01-01T00:00:00.000Z"), (3661.5, None)])
def test_a_json_line_has_the_time_of_utc_wherever_the_server_is(zone, seconds, told):
    record = logging.LogRecord("x", logging.INFO, "", 0, "one", None, None)
    record.created = seconds
    line = json.loads(JsonFormatter().format(record))
    assert line["time"] == (told or "1970-01-01T01:01:01.500Z")


def test_a_request_s_times_are_milliseconds_with_one_decimal_until_its_answer_s_end(caplog):
    account = Account()
    head = ("protocol", "method", "route", "remote", "key", "status")
    account.said = dict.fromkeys((*head, "trace_id", "span_id", "user_agent"))
    account.begun, account.ended = 10.0, 12.34567  # its jobs have ended later
    account.identifiers, account.num_jobs = ["cmpl-1-0", "cmpl-1-1"], 2
    account.consumption = Consumption(0.00123, 0.25, 3, 1, 8, "stop,length")
    with caplog.at_level(logging.INFO, "switchyard.access"):
        AccessLog().end(account)
    [record] = caplog.records
    told = record.msg.fields
    assert (told["duration_ms"], told["queue_ms"], told["ttft_ms"]) == (2345.7, 1.2, 250.0)
    assert (told["id"], told["finish_reason"]) == ("cmpl-1", "stop,length")


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
def start_logged(start, tmp_path):
    path = KeysFile(tmp_path / "keys.toml").write(entry("ann")).path
    return lambda command=SCRIPTED, **settings: start(
        command, keys_file=path, **settings
    ).wait_until_ready()


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
    wait_for(lambda: path.exists() and path.read_text().count("\n"))
    path.rename(tmp_path / "access.log.1")
    assert post(server).status_code == 200
    wait_for(lambda: path.exists() and path.read_text().count("\n"))
    [line] = path.read_text().splitlines()
    assert line.startswith("127.0.0.1 - ann [") and "completion_tokens=3" in line
    assert server.stop() == 0
    assert "completion_tokens" not in server.output


def test_the_audit_goes_to_stderr_whatever_the_level(start_logged, tmp_path):
    server = start_logged(log_level="ERROR")
    KeysFile(tmp_path / "keys.toml").write(entry("ann"), entry("bob"))
    told = "switchyard.audit: server: keys reloaded: added bob\n"
    wait_for(lambda: told in server.output)  # while no requests come
    for headers in (bearer("wrong"), {}):
        url = f"{server.url}/v1/models"
        assert requests.get(url, headers=headers, timeout=60).status_code == 401
    assert server.stop() == 0
    assert "switchyard.audit: address:127.0.0.1: wrong API keys: 1\n" in server.output


def test_a_log_that_cannot_be_opened_ends_the_start(start, tmp_path):
    server = start(access_log=tmp_path / "no" / "where")
    assert server.process.wait(120) == 3
    assert "switchyard: setting access_log: " in server.output
