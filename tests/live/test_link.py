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

import pytest

from tests.conftest import wait_for
from tests.faults.conftest import SCRIPTED, children_of, worker_of
from tests.faults.paced import HANG, LOSE_DEVICE
from tests.live.conftest import ROOT, shared_server
from tests.live.test_serving import greedy, in_threads, prompts, streamed_text

URL = "/v1/completions"


remote = shared_server(link="process", max_batch_size=64)


def engine_of(server):
    """The process id of the engine of a server."""
    [child] = children_of(worker_of(server))
    return child


def wait_until_gone(pid):
    wait_for(lambda: not pathlib.Path(f"/proc/{pid}").exists(), 20)


def wait_for_another(server, child):
    def is_there():
        with contextlib.suppress(ValueError):  # none at the moment
            return engine_of(server) != child

    server.wait_for(is_there)
    server.wait_until_ready()


def test_16_clients_at_once_get_the_same_text_over_both_links(server, remote):
    asked = prompts(16)
    here = [server.post(URL, greedy(prompt)).json()["choices"][0]["text"] for prompt in asked]
    assert in_threads(lambda prompt: streamed_text(remote, greedy(prompt)), asked) == here


def nearly(choice):
    """Equal to what differs from it by the rounding of another batch."""
    logprobs = dict(choice.get("logprobs") or {})
    for name in ("token_logprobs", "top_logprobs"):
        if name in logprobs:
            logprobs[name] = [pytest.approx(value, abs=1e-3) for value in logprobs[name]]
    return choice | {"logprobs": logprobs or None}


def test_all_that_a_job_may_ask_for_crosses(server, remote):
    more = {"logprobs": 2, "stop": ["zzz"], "n": 2, "logit_bias": {"300": -1}}
    body = greedy("def f(", 16, **more, repetition_penalty=1.1)
    constrained = greedy("x", 200, regex="[ab]{3}c")
    for asked in (body, constrained):
        here, there = (s.post(URL, asked).json() for s in (server, remote))
        assert there["choices"] == [nearly(choice) for choice in here["choices"]]
        for name in ("prompt_tokens", "completion_tokens"):  # one may have more of it cached
            assert there["usage"][name] == here["usage"][name]


def test_a_client_that_leaves_a_stream_has_its_job_cancelled(remote):
    body = greedy("x", 1900, stream=True, ignore_eos=True)
    response = remote.post(URL, body, stream=True)
    next(response.iter_lines())
    response.close()
    remote.wait_for(lambda: not remote.rows())


def test_only_the_engines_process_loads_what_a_gpu_is_used_with(start):
    server = start(link="process", is_warm=False).wait_until_ready()
    found = [
        "libtorch" in pathlib.Path(f"/proc/{pid}/maps").read_text()
        for pid in (worker_of(server), engine_of(server))
    ]
    assert found == [False, True]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_lets_streams_end(start, number):
    server = start(SCRIPTED, link="process").wait_until_ready()
    stream = server.begin(max_tokens=100)
    child = engine_of(server)
    for pid in (child, worker_of(server), server.process.pid):
        os.kill(pid, number)
    *_, body, done = stream
    assert b'"finish_reason":"length"' in body and done == b"[DONE]"
    assert server.process.wait(30) == 0
    wait_until_gone(child)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("killed", "was killed by SIGKILL"),
        (LOSE_DEVICE, "the device is lost"),
        (HANG, "does not return"),
    ],
    ids=["killed", "loses its device", "hangs"],
)
def test_a_lost_engine_is_replaced_and_the_worker_lives_on(start, fault, reason):
    server = start(SCRIPTED, link="process", hang_timeout=2, hang_exit=6).wait_until_ready()
    worker, child = worker_of(server), engine_of(server)
    stream = server.begin(max_tokens=1500)
    if fault == "killed":
        os.kill(child, signal.SIGKILL)
    else:
        server.post(URL, {"prompt": "x", "max_tokens": 50, "seed": fault})
    *_, end, done = stream
    assert done == b"[DONE]" and reason in json.loads(end)["error"]["message"]
    assert server.get("/health/live").status_code == 200
    if fault == HANG:
        ready = server.get("/health/ready")
        assert (ready.status_code, ready.json()["models"]) == (503, {"tiny": "hanging"})
        assert server.post(URL, {"prompt": "x"}).status_code == 503
    wait_for_another(server, child)
    assert server.post(URL, {"prompt": "x", "max_tokens": 3}).status_code == 200
    assert worker_of(server) == worker
    wait_until_gone(child)
    assert server.stop() == 0


def replicas_of(server):
    [row] = server.get("/v1/models").json()["data"]
    return row["meta"]["replicas"]


def wait_until_both_are_ready(server):
    server.wait_for(lambda: [one["state"] for one in replicas_of(server)] == ["ready", "ready"])


def test_a_replica_that_is_killed_costs_the_answers_that_it_had_begun(start):
    server = start(SCRIPTED, replicas=2, max_batch_size=2).wait_until_ready()
    wait_until_both_are_ready(server)
    begun = [server.begin(max_tokens=1500) for _ in range(4)]
    [lost, other] = [one["pid"] for one in replicas_of(server)]
    body = {"prompt": "x", "max_tokens": 3}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(server.post, URL, body) for _ in range(8)]
        server.wait_for(lambda: sum(row["state"] == "pending" for row in server.rows()) == 8)
        os.kill(lost, signal.SIGKILL)
        assert [answer.result().status_code for answer in answers] == [200] * 8
    assert all(b"was killed by SIGKILL" in b"".join(begun[i]) for i in (0, 2))
    assert server.get("/health/ready").status_code == 200
    wait_until_both_are_ready(server)
    first, second = replicas_of(server)
    assert (second["pid"], second["restarts"], first["restarts"]) == (other, 0, 1)
    assert first["pid"] != lost
    assert all(b'"text"' in next(begun[i]) for i in (1, 3))


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
    assert "was killed by SIGKILL; reloading it" in server.output
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
