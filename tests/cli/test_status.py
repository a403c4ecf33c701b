"""`switchyard status`, of a server that listens."""

import http.client
import json
import socket
import types

import pytest

from switchyard.cli import status as STATUS
from switchyard.cli.server import connect
from switchyard.cli.status import _lines
from tests.cli.conftest import Command
from tests.operations.conftest import KEYS
from tests.scripted import ScriptedBackend


@pytest.fixture
def status(switchyard, make_keyed, serve):
    url = serve(make_keyed(ScriptedBackend()).application)
    return Command("status", "--url", url)


def test_all_is_told_to_keys_that_may_watch(status):
    assert status.told(0, "--key", KEYS["prom"]).splitlines()[1:] == [
        "scripted: ready, 0 running, 0 waiting",
        "  at most 32 running and 64 waiting, 2048 tokens each, cache float32",
        "  0 tokens/s, 0 of prompts",
        "  0 of 64 pages in use, 0 kept",
        "0 streams, 0 WebSockets",
    ]


def test_each_line_of_a_busy_server_is_told():
    model = {"id": "m", "state": "recovering", "progress": 0.5, "running": 2, "waiting": 3}
    model |= {"max_batch_size": 4, "max_pending": 5, "max_seq_len": 100, "cache_mode": "q4"}
    model |= {"tokens_per_second": 12.5, "prompt_tokens_per_second": 3.0, "iteration_ms": 20.25}
    model |= {"last_iteration_age": 1.5, "recoveries": 2}
    model |= {"pages": {"all": 9, "referenced": 7, "cached": 1}}
    model |= {"gpus": [{"name": "cuda:0", "total": 8 << 30, "free": 2 << 30}]}
    told = {"version": "1", "uptime": 3725.4, "models": [model], "streams": 6, "websockets": 7}
    assert list(_lines({**told, "threads": {"busy": 8, "all": 9}})) == [
        "switchyard 1, up for 1:02:05",
        "m: recovering 50%, 2 running, 3 waiting",
        "  at most 4 running and 5 waiting, 100 tokens each, cache q4",
        "  12.5 tokens/s, 3 of prompts, 20.25 ms per step",
        "  the last step was 1.5 seconds ago",
        "  7 of 9 pages in use, 1 kept",
        "  cuda:0: 6.0 of 8.0 GiB",
        "  recovered 2 times",
        "6 streams, 7 WebSockets",
        "8 of 9 request threads busy",
    ]


def test_numbers_at_their_limits_are_told():
    model = {"id": "m", "state": "loading", "progress": 0.0, "running": 0, "waiting": 0}
    model |= {"max_batch_size": 4, "max_pending": 5, "tokens_per_second": 0.0}
    model |= {"prompt_tokens_per_second": 0.0, "iteration_ms": 0.0, "last_iteration_age": 1.0}
    model |= {"recoveries": 1, "gpus": [{"name": "cuda:0", "total": 8 << 30, "free": 8 << 30}]}
    assert list(_lines({"version": "1", "uptime": 59.6, "models": [model]})) == [
        "switchyard 1, up for 0:01:00",
        "m: loading 0%, 0 running, 0 waiting",
        "  at most 4 running and 5 waiting",
        "  0 tokens/s, 0 of prompts, 0 ms per step",
        "  cuda:0: 0.0 of 8.0 GiB",
        "  recovered 1 times",
    ]


def test_a_user_sees_states_and_sums(status):
    done = status("--key", KEYS["ann"])
    assert done.output.splitlines()[1:] == ["scripted: ready, 0 running, 0 waiting"]
    told = json.loads(status("--key", KEYS["ann"], "--json").output)
    assert told["models"][0]["state"] == "ready"


@pytest.mark.parametrize(
    ("scheme", "kind"),
    [("http", http.client.HTTPConnection), ("https", http.client.HTTPSConnection)],
)
def test_a_server_is_asked_by_its_scheme_and_in_time(scheme, kind):
    connection, prefix = connect(f"{scheme}://127.0.0.1:1/x/", 7)
    assert (type(connection), connection.timeout, prefix) == (kind, 7, "/x")


def test_a_server_at_a_socket_is_asked_in_time(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        connection, prefix = connect(f"unix:{tmp_path}/s", 7)
        connection.connect()
        assert (connection.sock.gettimeout(), prefix) == (7, "")
        connection.close()


def test_a_watch_shows_it_anew_until_ctrl_c(status, monkeypatch):
    waited = []

    def sleep(seconds):
        waited.append(seconds)
        if len(waited) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(STATUS, "time", types.SimpleNamespace(sleep=sleep))
    done = status("--key", KEYS["prom"], "--watch")
    assert done.exit_code == 0 and waited == [2.0] * 3
    assert done.output.count("scripted: ready, 0 running, 0 waiting") == 3
