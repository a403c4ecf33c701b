"""Two real servers that share an engine in a third process: `switchyard engine`."""

import concurrent.futures
import json
import os
import signal
import sys

import pytest
import requests

from tests.faults.conftest import worker_of
from tests.live.conftest import GUNICORN, Server

ENGINE = [sys.executable, "-m", "switchyard", "engine", "--at"]
URL = "/v1/completions"


class Shared:
    def __init__(self, directory, model, **settings):
        self.at = f"unix:{directory}/engine.sock"
        self._made_of = directory, {"model": model, "max_batch_size": 4, **settings}
        self.engine = self.start_engine()
        settings = {**self._made_of[1], "link": "socket", "at": self.at}
        self.servers = [Server(GUNICORN, directory, **settings) for _ in range(2)]

    def start_engine(self):
        directory, settings = self._made_of
        self.engine = Server([*ENGINE, self.at], directory, **settings)
        return self.engine

    def __enter__(self):
        return self

    def __exit__(self, *_):
        ended = [(server.stop(), server.output) for server in (*self.servers, self.engine)]
        assert [status for status, _ in ended] == [0, 0, 0], ended


@pytest.fixture(scope="module")
def shared(tmp_path_factory, model_path):
    """Each test leaves it as it was."""
    with Shared(tmp_path_factory.mktemp("shared"), model_path) as one:
        for server in one.servers:
            server.wait_until_ready()
        yield one


def stream(server, prompt="x", max_tokens=1500):
    return server.begin(prompt=prompt, max_tokens=max_tokens, ignore_eos=True)


def test_they_have_one_model_one_cache_and_one_list(shared):
    first, second = shared.servers
    [model] = first.get("/v1/models").json()["data"]
    [replica] = model["meta"]["replicas"]
    assert (replica["pid"], replica["at"]) == (shared.engine.process.pid, shared.at)
    body = {"prompt": "word " * 600, "max_tokens": 8, "temperature": 0}
    answers = [server.post(URL, body).json() for server in (first, second)]
    texts = [answer["choices"][0]["text"] for answer in answers]
    cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in answers]
    assert texts[0] == texts[1] and cached[0] == 0 < cached[1]

    lines = stream(first)
    [row] = second.rows()
    assert row["state"] == "decode"
    gone = requests.delete(f"{second.url}/v1/requests/{row['id']}", timeout=20)
    assert gone.json()["cancelled"] == 1
    assert b"[DONE]" in list(lines)
    assert not first.rows()
    refused = requests.delete(f"{second.url}/v1/requests/{row['id']}", timeout=20)
    assert refused.status_code == 404


def test_what_a_killed_server_had_asked_for_ends(shared):
    first, second = shared.servers
    lines = stream(first)
    [_] = second.rows()
    os.kill(worker_of(first), signal.SIGKILL)
    with pytest.raises(requests.RequestException):
        list(lines)
    second.wait_for(lambda: not second.rows())
    first.wait_until_ready()
    assert first.post(URL, {"prompt": "x", "max_tokens": 3}).status_code == 200


def test_a_killed_engine_costs_what_it_had_begun_to_tell(shared):
    first, second = shared.servers
    begun = [stream(server, f"{i}") for i in range(2) for server in shared.servers]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        waiting = [
            pool.submit(server.post, URL, {"prompt": f"{i} y", "max_tokens": 3})
            for i in range(4)
            for server in shared.servers
        ]
        first.wait_for(lambda: sum(row["state"] == "pending" for row in first.rows()) == 8)
        shared.engine.process.kill()
        shared.engine.process.wait(20)
        for lines in begun:
            [error] = [body for body in lines if body.startswith(b'{"error"')]
            assert shared.at in json.loads(error)["error"]["message"]
        for server in shared.servers:
            ready = server.get("/health/ready")
            assert (ready.status_code, ready.json()["models"]) == (503, {"tiny": "recovering"})
        late = pool.submit(second.post, URL, {"prompt": "late", "max_tokens": 3})
        shared.start_engine()
        assert [one.result().status_code for one in [*waiting, late]] == [200] * 9


def test_an_engine_that_is_told_to_end_finishes_what_it_has(shared):
    first, _ = shared.servers
    lines = stream(first, max_tokens=300)
    assert shared.engine.stop() == 0, shared.engine.output
    assert b"[DONE]" in list(lines)
    shared.start_engine()
    assert first.post(URL, {"prompt": "x", "max_tokens": 3}).status_code == 200


def test_no_server_loads_or_ends_what_it_shares(shared):
    for path in ("/models/unload", "/v1/model/unload"):
        refused = shared.servers[0].post(path, {"model": "tiny"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (501, "shared_engine")
    assert shared.at in refused.json()["error"]["message"]
    assert shared.servers[1].post(URL, {"prompt": "x", "max_tokens": 3}).status_code == 200


def test_what_keeps_an_engine_from_its_place_is_said(tmp_path, model_path):
    def run(*more, **settings):
        server = Server([*ENGINE, *more], tmp_path, model=model_path, **settings)
        return server.process.wait(60), server.output.strip().splitlines()[-1]

    assert run("0.0.0.0:7000")[0] == 1
    status, told = run("127.0.0.1:7000")
    assert status == 1 and told.endswith("127.0.0.1:7000 needs a key: set engine_key_file")
    status, told = run(f"unix:{tmp_path}/e.sock", "--set", "cache_tokens=auto")
    assert status == 3 and "model tiny: cache_tokens auto needs a GPU" in told
    assert not (tmp_path / "e.sock").exists()
    status, told = run(f"unix:{tmp_path}/e.sock", "--name", "another")
    assert status == 2 and "--name: must be one of tiny" in told
