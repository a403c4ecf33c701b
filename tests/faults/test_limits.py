"""What becomes of a server that the system gives little."""

import contextlib
import pathlib
import re
import resource
import socket
import subprocess
import sys
import time
import types

import pytest

from switchyard.server import limits
from tests.faults.conftest import SCRIPTED, open_request, worker_of
from tests.live.conftest import GUNICORN, ROOT

URL = "/v1/completions"


def limited(*limits):
    """The command of a server for which `ulimit` was called with each of them before."""
    calls = "".join(f"ulimit {limit}; " for limit in limits)
    return ["sh", "-c", f'{calls}exec "$@"', "sh", *SCRIPTED]


@pytest.fixture
def many_files():
    """For this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_more_idle_connections_than_files_do_not_end_the_worker(start, many_files):
    server = start(limited("-n 1024", "-S -n 300")).wait_until_ready()
    worker = worker_of(server)
    assert resource.prlimit(worker, resource.RLIMIT_NOFILE) == (1024, 1024)
    assert "Open files: 1024 (ulimit -n)" in server.output  # the soft limit is raised
    stream = server.begin(max_tokens=200)
    with contextlib.ExitStack() as stack:
        for _ in range(1100):
            connection = stack.enter_context(socket.socket())
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.connect(("127.0.0.1", server.port))
        assert b"[DONE]" in list(stream)
        assert server.get("/health/live").status_code == 200
    assert worker_of(server) == worker
    assert server.stop() == 0


def test_too_few_files_for_its_threads_are_refused_in_a_sentence(start):
    server = start(limited("-n 400"))
    assert server.process.wait(60) == 1
    assert "400 open files (ulimit -n) are too few for 144 request threads" in server.output
    assert "Traceback" not in server.output


def test_a_file_limit_that_is_met_keeps_newcomers_waiting_and_no_processor_busy(start):
    """As a system that has no more files, sockets or memory."""
    server = start(SCRIPTED).wait_until_ready()
    worker = worker_of(server)
    stream = server.begin(max_tokens=200)
    before = resource.prlimit(worker, resource.RLIMIT_NOFILE)
    resource.prlimit(worker, resource.RLIMIT_NOFILE, (3, before[1]))
    waiting = open_request(server, {"prompt": "x", "max_tokens": 1})
    assert b"[DONE]" in list(stream)
    count = server.output.count("No room for a new connection")
    assert 1 <= count < 20  # a busy loop would have said it thousands of times
    resource.prlimit(worker, resource.RLIMIT_NOFILE, before)
    assert b" 200 OK" in waiting.recv(65536)
    waiting.close()
    assert server.stop() == 0


def test_a_start_without_room_for_all_threads_ends_with_one_clear_line(start):
    server = start(limited("-s 65536", "-v 5000000"))  # 64 MB for the stack of each thread
    assert server.process.wait(60) == 3
    assert "Threads: 144 for requests" in server.output and "(ulimit -u)" in server.output
    [line] = [line for line in server.output.splitlines() if line.startswith("switchyard: ")]
    assert "can't start new thread in addition to" in line
    assert "Traceback" not in server.output


def settled(process):
    """How it stands once what has loaded the model has ended."""
    path, seen = pathlib.Path(f"/proc/{process}/status"), []
    while seen[-10:] != seen[-1:] * 10:
        seen.append(int(re.search(r"Threads:\s+(\d+)", path.read_text())[1]))
        time.sleep(0.05)
    return path.read_text()


def test_a_system_that_has_no_more_threads_costs_no_stream(start):
    """No memory for the stack of another; there is some for all else."""
    server = start(limited("-s 131072")).wait_until_ready()
    worker = worker_of(server)
    status = settled(worker)
    size = int(re.search(r"VmSize:\s+(\d+) kB", status)[1]) * 1024
    resource.prlimit(worker, resource.RLIMIT_AS, (size + (100 << 20), resource.RLIM_INFINITY))
    for stream in [server.begin(max_tokens=200) for _ in range(24)]:
        assert b"[DONE]" in list(stream)
    assert "a request thread writes its own stream" in server.output
    assert worker_of(server) == worker
    assert server.stop() == 0


@pytest.mark.parametrize(("closed", "link"), [(">&- 2>&-", "thread"), ("<&- >&- 2>&-", "process")])
def test_a_server_starts_without_standard_streams(start, closed, link):
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *GUNICORN]
    server = start(command, link=link).wait_until_ready()
    assert server.post(URL, {"prompt": "x", "max_tokens": 3}).status_code == 200
    assert server.stop() == 0


def test_no_temporary_directory_is_a_start_refused_in_a_sentence(start, tmp_path):
    """All that Python tries."""
    places = " ".join(f"/proc/{name}" for name in ("tmp", "var/tmp", "usr/tmp"))
    code = f"import os, tempfile; tempfile._candidate_tempdir_list = lambda: {places.split()!r}"
    (tmp_path / "sitecustomize.py").write_text(code)
    command = ["env", f"PYTHONPATH={tmp_path}:{ROOT}", *SCRIPTED]
    server = start(command)
    assert server.process.wait(60) == 1
    assert "switchyard: no temporary directory can be written to: " in server.output
    assert "Traceback" not in server.output


@pytest.mark.parametrize(
    ("groups", "pod", "own", "told"),
    [
        ("7:cpu:/other\n8:pids:/pod/server\n", "300", "max", "300"),
        ("7:cpu:/other\n8:pids:/pod/server\n", "300", "200", "200"),
        ("8:pids:/\n", "300", "200", "no limit"),
        ("0::/pod/server\n", "300", "400", "300"),  # of a unified group
    ],
)
def test_the_strictest_limit_of_threads_around_the_server_is_told(
    tmp_path, monkeypatch, groups, pod, own, told
):
    """A container's may be none, and its pod's a few."""
    root = tmp_path if groups.startswith("0:") else tmp_path / "pids"
    (root / "pod" / "server").mkdir(parents=True)
    (root / "pod" / "pids.max").write_text(f"{pod}\n")
    (root / "pod" / "server" / "pids.max").write_text(f"{own}\n")
    (tmp_path / "cgroup").write_text(groups)
    monkeypatch.setattr(limits, "CGROUPS", tmp_path)
    paths = types.SimpleNamespace(Path=lambda name: tmp_path / "cgroup")
    monkeypatch.setattr(limits, "pathlib", paths)
    assert f", {told} (pids.max of the control group)" in limits.threads_allowed()


@pytest.mark.parametrize(
    ("num_files", "number"), [(resource.RLIM_INFINITY, 80), (1_000_000, 80), (300, 36)]
)
def test_a_thread_gets_ten_connections_where_there_are_files(num_files, number):
    assert limits.max_connections(8, num_files) == number


def test_the_limit_of_threads_that_is_told_is_the_soft_one():
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (1000, hard))
    try:
        assert limits.threads_allowed().startswith("1000 for this user (ulimit -u), ")
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))


def test_a_closed_standard_input_reads_as_empty():
    code = (
        "import sys; from switchyard.server import limits; limits.open_standard_streams();"
        " print(repr(sys.stdin.read()))"
    )
    command = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout == "''\n"
