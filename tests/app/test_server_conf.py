"""What gunicorn is told: switchyard/server/conf.py, as gunicorn runs it."""

import os
import resource
import runpy

import pytest

from switchyard.server.worker import LAST_WRITES, RELEASE
from tests.conftest import ROOT


@pytest.fixture
def configure(model_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("SWITCHYARD_")]:
        monkeypatch.delenv(name)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def configure(**settings):
        for name, value in {"model": model_path, **settings}.items():
            monkeypatch.setenv(f"SWITCHYARD_{name.upper()}", str(value))
        return runpy.run_path(str(ROOT / "switchyard" / "server" / "conf.py"))

    yield configure
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_the_master_waits_for_the_whole_drain_and_for_a_hang_to_be_noticed(configure):
    values = configure(grace=120, hang_exit=1000)
    assert values["graceful_timeout"] > 120 + RELEASE + LAST_WRITES
    assert values["timeout"] > 1000
    short = configure(grace=0, hang_exit=100)
    assert RELEASE + LAST_WRITES < short["graceful_timeout"] < 60
    assert 100 < short["timeout"] < 1000


def test_one_worker_of_as_many_threads_as_jobs_and_some_in_reserve(configure):
    values = configure(max_batch_size=4, max_pending=10, max_websockets=3, reserve_threads=8)
    assert (values["workers"], values["preload_app"]) == (1, False)
    assert values["threads"] == 4 + 10 + 3 + 8
    assert values["worker_connections"] > values["threads"]
    assert values["forwarder_headers"] == "" and values["control_socket_disable"] is True
