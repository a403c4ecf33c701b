"""How a server ends: what runs may end first, what comes is told so, nothing is cut off."""

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import time

import pytest

from switchyard.server.worker import LAST_WRITES
from tests.faults.conftest import SCRIPTED, open_request, read_all, worker_of
from tests.faults.paced import FLOOD

URL = "/v1/completions"


def last(frames):
    """The last body of a stream, which ends as it should."""
    *_, body, done = frames
    assert done == b"[DONE]"
    return json.loads(body)


def end(server, how):
    match how:
        case "SIGTERM" | "SIGINT":
            server.process.send_signal(getattr(signal, how))
        case "Ctrl-C":  # a terminal sends it to all processes of the group
            os.kill(worker_of(server), signal.SIGINT)
            server.process.send_signal(signal.SIGINT)  # the worker gets the master's later
        case "/admin/drain":
            assert server.post(how, {}).status_code == 202


def wait_until_not_ready(server):
    server.wait_for(lambda: server.get("/health/ready").status_code != 200)


@pytest.mark.parametrize(
    ("how", "log_format"),
    [("SIGTERM", "json"), ("SIGINT", "text"), ("Ctrl-C", "text"), ("/admin/drain", "text")],
)
def test_every_stream_ends_with_done_and_newcomers_are_told(start, how, log_format):
    server = start(SCRIPTED, grace=4.5, log_format=log_format).wait_until_ready()
    # 20 seconds, of two jobs each, and one second.
    streams = [server.begin(max_tokens=2000 if n == 2 else 100, n=n) for n in [2] * 10 + [1] * 8]
    end(server, how)
    wait_until_not_ready(server)
    for _ in range(3):  # within the grace
        response = server.post(URL, {"prompt": "x"})
        assert response.status_code == 503
        assert int(response.headers["Retry-After"]) >= 1
        assert response.json()["error"]["code"] == "overloaded"
        assert server.get("/health/live").status_code == 200
        ready = server.get("/health/ready")
        assert ready.status_code == 503 and ready.json()["models"]["tiny"] == "draining"
    ends = [last(frames) for frames in streams]
    assert [end["error"]["code"] for end in ends[:10]] == ["shutting_down"] * 10
    assert [end["choices"][0]["finish_reason"] for end in ends[10:]] == ["length"] * 8
    assert server.process.wait(20) == 0
    says = r"switchyard: finishing (\d+) requests, for at most 4\.5 s; "
    says += "a second Ctrl-C or SIGTERM ends the server now"
    says = f'"message": "{says}"}}' if log_format == "json" else says
    [number] = re.findall(f"(?m){says}$", server.output)
    assert 10 <= int(number) <= 18  # of 28 jobs
    assert server.output.count("finishing") == 1


def ask_to_drain(path, *headers):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        lines = ("POST /admin/drain HTTP/1.1", "Host: any.example", "Content-Length: 0", *headers)
        client.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
        return client.recv(65536)[:12]


def test_a_unix_socket_is_its_owners_alone_and_says_how_to_reach_and_drain_it(start, tmp_path):
    path = tmp_path / "a socket"
    with socket.socket(socket.AF_UNIX) as left_over:  # by a server that was killed
        left_over.bind(str(path))
    server = start(SCRIPTED, bind=f"unix:{path}")
    server.wait_to_say("Try: ")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    second = start(SCRIPTED, bind=f"unix:{path}")
    assert second.process.wait(60) == 1
    assert f"switchyard: unix:{path} is taken by another server" in second.output
    assert f"at unix:{path}\n" in server.output
    if shutil.which("curl"):
        command = server.output.partition("Try: ")[2].splitlines()[0]
        answer = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=20)
        assert answer.stdout.endswith("data: [DONE]\n\n"), (command, answer)
    assert ask_to_drain(path, "X-Forwarded-For: 10.0.0.1") == b"HTTP/1.1 403"
    assert ask_to_drain(path) == b"HTTP/1.1 202"
    assert server.process.wait(20) == 0
    start([*SCRIPTED, "--umask", "0o117"], bind=f"unix:{path}").wait_to_say("Try: ")
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


@pytest.mark.parametrize("second", ["SIGTERM", "/admin/drain"])
def test_a_supervisor_may_drain_before_or_after_its_signal(start, second):
    server = start(SCRIPTED, grace=30).wait_until_ready()
    stream = server.begin(max_tokens=100)
    end(server, "/admin/drain")
    end(server, second)
    assert last(stream)["choices"][0]["finish_reason"] == "length"
    assert server.process.wait(20) == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(start, second):
    server = start(SCRIPTED, grace=60).wait_until_ready()
    stream = server.begin(max_tokens=2000)
    server.process.send_signal(signal.SIGTERM)
    wait_until_not_ready(server)
    begin = time.monotonic()
    server.process.send_signal(second)
    assert server.process.wait(20) == 0
    assert time.monotonic() - begin < 15  # of 20 that the stream would take
    assert last(stream)["error"]["code"] == "shutting_down"
    assert "switchyard: finishing 1 request, for at most 60 s; " in server.output


def test_an_idle_server_ends_soon_and_has_nothing_to_say(start):
    server = start(SCRIPTED, grace=60).wait_until_ready()
    begin = time.monotonic()
    assert server.stop(signal.SIGINT) == 0
    assert time.monotonic() - begin < 30  # of 60
    assert "finishing" not in server.output


def begin_to_read(server):
    """Of 10 MB in 1.5 seconds."""
    body = {"prompt": "x", "max_tokens": 150, "seed": FLOOD, "stream": True}
    connection = open_request(server, body, receive_buffer=4096)
    assert connection.recv(10)
    return connection


@pytest.mark.hardship
def test_a_reader_may_take_the_grace_for_what_has_been_generated(start):
    server = start(SCRIPTED, grace=60).wait_until_ready()
    slow = begin_to_read(server)
    server.process.terminate()
    time.sleep(LAST_WRITES + 3)  # which are over for the others
    received = read_all(slow)
    assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    slow.close()
    assert server.process.wait(60) == 0


def test_readers_that_have_stopped_do_not_delay_the_end(start):
    server = start(SCRIPTED, grace=2, send_timeout=600).wait_until_ready()
    stalled = begin_to_read(server)
    begin = time.monotonic()
    assert server.stop() == 0
    assert 2 < time.monotonic() - begin < 60  # of 600
    stalled.close()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR2])
def test_what_would_load_a_second_model_is_refused_in_a_sentence(start, number):
    server = start(SCRIPTED).wait_until_ready()
    worker = worker_of(server)
    server.process.send_signal(number)
    os.kill(worker, number)
    server.wait_to_say(f"{number.name} is refused")
    assert server.post(URL, {"prompt": "x", "max_tokens": 1}).status_code == 200
    assert worker_of(server) == worker
    assert server.output.count("Booting worker") == 1
