"""A real server whose engine runs in its own process, against one in whose process it runs."""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest
import requests

from tests.faults.conftest import SCRIPTED, worker_of
from tests.faults.paced import HANG, LOSE_DEVICE
from tests.live.conftest import GUNICORN, ROOT, Server
from tests.live.test_serving import greedy, in_threads, prompts, streamed_text

URL = "/v1/completions"


@pytest.fixture(scope="module")
def remote(tmp_path_factory, model_path):
    directory = tmp_path_factory.mktemp("server")
    server = Server(GUNICORN, directory, model=model_path, link="process", max_batch_size=64)
    yield server.wait_until_ready()
    assert server.stop() == 0, server.output


def engine_of(server):
    """The process id of the engine of a server."""
    tasks = pathlib.Path(f"/proc/{worker_of(server)}/task").glob("*/children")
    [child] = [int(pid) for task in tasks for pid in task.read_text().split()]
    return child


def is_there(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def wait_until_gone(pid):
    deadline = time.monotonic() + 20
    while is_there(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_for_another(server, child):
    deadline = time.monotonic() + 20
    while True:
        assert time.monotonic() < deadline, server.output
        with contextlib.suppress(ValueError):  # none at the moment
            if engine_of(server) != child:
                break
        time.sleep(0.02)
    server.wait_until_ready()


def test_16_clients_at_once_get_the_same_text_over_both_links(server, remote):
    asked = prompts(16)
    here = [server.post(URL, greedy(prompt)).json()["choices"][0]["text"] for prompt in asked]

    def ask(prompt):
        with remote.post(URL, greedy(prompt, stream=True), stream=True) as response:
            return streamed_text(response)

    assert in_threads(ask, asked) == here


def nearly(choice):
    """Equal to what differs from it by the rounding of another batch."""
    logprobs = dict(choice.get("logprobs") or {})
    for name in ("token_logprobs", "top_logprobs"):
        if name in logprobs:
            logprobs[name] = [pytest.approx(value, abs=1e-3) for value in logprobs[name]]
    return choice | {"logprobs": logprobs or None}


def test_all_that_a_job_may_ask_for_crosses(server, remote):
    body = greedy(
        "def f(",
        16,
        logprobs=2,
        stop=["zzz"],
        n=2,
        logit_bias={"300": -1},
        repetition_penalty=1.1,
    )
    constrained = greedy("x", 200, regex="[ab]{3}c")
    for asked in (body, constrained):
        here, there = (s.post(URL, asked).json() for s in (server, remote))
        assert there["choices"] == [nearly(choice) for choice in here["choices"]]
        for name in ("prompt_tokens", "completion_tokens"):  # one may have more of it cached
            assert there["usage"][name] == here["usage"][name]


def test_a_bad_constraint_is_refused_before_it_crosses(remote):
    response = remote.post(URL, greedy("x", regex="("))
    assert response.status_code == 400


def test_a_client_that_leaves_a_stream_has_its_job_cancelled(remote):
    body = greedy("x", 1900, stream=True, ignore_eos=True)
    response = remote.post(URL, body, stream=True)
    next(response.iter_lines())
    response.close()
    deadline = time.monotonic() + 20
    while requests.get(f"{remote.url}/v1/requests", timeout=10).json()["data"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_only_the_engines_process_loads_what_a_gpu_is_used_with(start, model_path):
    server = start(GUNICORN, model=model_path, link="process", is_warm=False).wait_until_ready()
    found = [
        "libtorch" in pathlib.Path(f"/proc/{pid}/maps").read_text()
        for pid in (worker_of(server), engine_of(server))
    ]
    assert found == [False, True]


def ask_for_minutes(server):
    response = server.post(URL, {"prompt": "x", "max_tokens": 1500, "stream": True}, stream=True)
    lines = response.iter_lines()
    next(lines)
    return lines


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_lets_streams_end(start, number):
    server = start(["setsid", *SCRIPTED], link="process").wait_until_ready()
    body = {"prompt": "x", "max_tokens": 200, "stream": True}
    response = server.post(URL, body, stream=True)
    lines = response.iter_lines()
    next(lines)
    child = engine_of(server)
    os.kill(child, number)
    os.killpg(server.process.pid, number)
    rest = b"".join(lines)
    assert b'"finish_reason":"length"' in rest and rest.endswith(b"data: [DONE]")
    assert server.process.wait(30) == 0
    wait_until_gone(child)


@pytest.mark.parametrize("fault", ["killed", "loses its device", "hangs"])
def test_a_lost_engine_is_replaced_and_the_worker_lives_on(start, fault):
    server = start(SCRIPTED, link="process", hang_timeout=2, hang_exit=8).wait_until_ready()
    worker, child = worker_of(server), engine_of(server)
    lines = ask_for_minutes(server)
    if fault == "killed":
        os.kill(child, signal.SIGKILL)
    else:
        seed = HANG if fault == "hangs" else LOSE_DEVICE
        server.post(URL, {"prompt": "x", "max_tokens": 50, "seed": seed})
    *_, end, done = [line for line in lines if line.startswith(b"data: ")]
    assert done == b"data: [DONE]"
    reasons = {"killed": "was killed by SIGKILL", "hangs": "does not return"}
    assert reasons.get(fault, "the device is lost") in json.loads(end[6:])["error"]["message"]
    assert requests.get(f"{server.url}/health/live", timeout=10).status_code == 200
    if fault == "hangs":
        ready = requests.get(f"{server.url}/health/ready", timeout=10)
        assert (ready.status_code, ready.json()["models"]) == (503, {"tiny": "hanging"})
        assert server.post(URL, {"prompt": "x"}).status_code == 503
    wait_for_another(server, child)
    assert server.post(URL, {"prompt": "x", "max_tokens": 3}).status_code == 200
    assert worker_of(server) == worker
    wait_until_gone(child)
    assert server.stop() == 0


def replicas_of(server):
    [row] = requests.get(f"{server.url}/v1/models", timeout=10).json()["data"]
    return row["meta"]["replicas"]


def num_waiting(server):
    jobs = requests.get(f"{server.url}/v1/requests", timeout=10).json()["data"]
    return sum(job["state"] == "pending" for job in jobs)


def wait_until_both_are_ready(server):
    deadline = time.monotonic() + 60
    while [one["state"] for one in replicas_of(server)] != ["ready", "ready"]:
        assert time.monotonic() < deadline, server.output
        time.sleep(0.05)


def test_a_replica_that_is_killed_costs_the_answers_that_it_had_begun(start):
    server = start(SCRIPTED, replicas=2, max_batch_size=2).wait_until_ready()
    wait_until_both_are_ready(server)
    begun = [ask_for_minutes(server) for _ in range(4)]
    waiting = [{"prompt": "x", "max_tokens": 3} for _ in range(8)]
    [lost, other] = [one["pid"] for one in replicas_of(server)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(server.post, URL, body) for body in waiting]
        while num_waiting(server) < 8:
            time.sleep(0.02)
        os.kill(lost, signal.SIGKILL)
        assert [answer.result().status_code for answer in answers] == [200] * 8
    ended = [b"was killed by SIGKILL" in b"".join(begun[i]) for i in (0, 2)]
    assert ended == [True, True]
    assert requests.get(f"{server.url}/health/ready", timeout=10).status_code == 200
    wait_until_both_are_ready(server)
    first, second = replicas_of(server)
    assert (second["pid"], second["restarts"], first["restarts"]) == (other, 0, 1)
    assert first["pid"] != lost
    for lines in (begun[1], begun[3]):
        assert b"data: " in next(line for line in lines if line)
    for lines in begun:
        lines.close()


def test_the_engine_of_a_killed_worker_ends(start):
    server = start(SCRIPTED, link="process").wait_until_ready()
    worker, child = worker_of(server), engine_of(server)
    os.kill(worker, signal.SIGKILL)
    wait_until_gone(child)
    server.wait_until_ready()
    assert worker_of(server) != worker
    assert server.stop() == 0


def test_an_engine_that_can_not_be_replaced_ends_the_server(start, model_path, tmp_path):
    path = shutil.copytree(model_path, tmp_path / "lost")
    server = start(link="process", model=path).wait_until_ready()
    child = engine_of(server)
    (path / "model.safetensors").unlink()
    os.kill(child, signal.SIGKILL)
    assert server.process.wait(120) == 3, server.output
    assert "was killed by SIGKILL; it is reloaded" in server.output
    wait_until_gone(child)


HOST = """
import flask
from switchyard.app import Switchyard

print("the host's main module runs")
app = flask.Flask("host")
switchyard = Switchyard(app, link="process")
print(switchyard.generate("x", max_tokens=3, ignore_eos=True).completion_tokens)
"""


def test_a_script_without_a_guard_is_not_run_again_by_the_engines_process(model_path, tmp_path):
    script = tmp_path / "host.py"
    script.write_text(HOST)
    environment = {"PYTHONPATH": str(ROOT), "SWITCHYARD_MODEL": model_path}
    done = subprocess.run(
        [sys.executable, script], env=os.environ | environment, stdout=subprocess.PIPE, timeout=120
    )
    assert done.stdout.count(b"the host's main module runs") == 1
    assert done.stdout.endswith(b"\n3\n") and done.returncode == 0
