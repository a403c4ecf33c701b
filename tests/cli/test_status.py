"""`switchyard status`, of a server that listens."""

import json
import threading

import pytest
import werkzeug.serving
from click.testing import CliRunner

from switchyard.cli import main
from tests.app.conftest import make_client, way
from tests.operations.conftest import KEYS, clock, keys_file, make_keyed
from tests.scripted import ScriptedBackend

__all__ = ["clock", "keys_file", "make_client", "make_keyed", "way"]


@pytest.fixture
def status(make_keyed, monkeypatch, tmp_path):
    application = make_keyed(ScriptedBackend()).application
    server = werkzeug.serving.make_server("127.0.0.1", 0, application, threaded=False)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.chdir(tmp_path)
    url = f"http://127.0.0.1:{server.server_port}"
    yield lambda *args: CliRunner().invoke(main, ["status", "--url", url, *args])
    server.shutdown()
    thread.join(20)
    server.server_close()


def test_all_is_told_to_keys_that_may_watch(status):
    done = status("--key", KEYS["prom"])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[1:] == [
        "scripted: ready, 0 running, 0 waiting",
        "  at most 32 running and 64 waiting, 2048 tokens each, cache float32",
        "  0 tokens/s, 0 of prompts",
        "  0 of 64 pages in use, 0 kept",
        "0 streams, 0 WebSockets",
    ]


def test_a_user_sees_states_and_sums(status):
    done = status("--key", KEYS["ann"])
    assert done.output.splitlines()[1:] == ["scripted: ready, 0 running, 0 waiting"]
    told = json.loads(status("--key", KEYS["ann"], "--json").output)
    assert told["models"][0]["state"] == "ready"


def test_a_refusal_ends_with_status_1(status):
    done = status("--key", "wrong")
    assert done.exit_code == 1 and "401: the API key is missing or not valid" in done.output
