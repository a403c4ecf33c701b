"""What systemd hears, on a real socket: ready once the model is warm, signs of life, the end."""

import signal
import socket

import pytest

from tests.live.conftest import Server
from tests.live.test_shared_engine import ENGINE


class Systemd:
    def __init__(self, path):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(60)
        self._socket.bind(path)

    def close(self):
        self._socket.close()

    def wait_for(self, line):
        """The messages until the first that has this line, which is among them."""
        heard = [self._receive()]
        while line not in heard[-1]:
            heard.append(self._receive())
        return heard

    def _receive(self):
        return self._socket.recv(4096).decode().splitlines()


@pytest.fixture(params=["{}/notify", "@{}/notify"])
def systemd(request, tmp_path, monkeypatch):
    name = request.param.format(tmp_path)
    one = Systemd(name.replace("@", "\0"))
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    monkeypatch.setenv("WATCHDOG_USEC", "300000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    yield one
    one.close()


@pytest.mark.parametrize("systemd", ["{}/notify"], indirect=True)
def test_a_drain_by_http_is_told_as_the_end(systemd, start):
    server = start(grace=7)
    systemd.wait_for("READY=1")
    server.post("/admin/drain", {})
    assert "EXTEND_TIMEOUT_USEC=25000000" in systemd.wait_for("STOPPING=1")[-1]
    assert server.process.wait(60) == 0


def test_ready_comes_once_the_model_is_warm_and_the_end_as_it_begins(systemd, start):
    server = start()
    heard = systemd.wait_for("READY=1")
    assert server.get("/health/ready").status_code == 200
    assert not any("STOPPING=1" in message for message in heard)
    systemd.wait_for("STATUS=tiny: ready")
    systemd.wait_for("WATCHDOG=1")
    server.process.send_signal(signal.SIGTERM)
    systemd.wait_for("STOPPING=1")
    assert server.process.wait(60) == 0


def test_a_shared_engine_tells_the_same(systemd, tmp_path, model_path):
    at = f"unix:{tmp_path}/engine.sock"
    engine = Server([*ENGINE, at], tmp_path, model=model_path)
    try:
        *before, _ = heard = systemd.wait_for("READY=1")
        assert all("STATUS=loading" in message for message in before)  # a load may be quick
        assert not any("WATCHDOG=1" in message for message in heard)
        systemd.wait_for("WATCHDOG=1")
        engine.process.send_signal(signal.SIGTERM)
        systemd.wait_for("STOPPING=1")
        assert engine.process.wait(60) == 0, engine.output
    finally:
        engine.stop()
