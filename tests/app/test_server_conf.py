"""What gunicorn is told: switchyard/server/conf.py, as gunicorn runs it."""

import contextlib
import errno
import itertools
import os
import resource
import runpy
import socket
import sys
import time
from types import SimpleNamespace
from unittest.mock import MagicMock, call

import pytest
from gunicorn.glogging import Logger

from switchyard.server import address, limits
from switchyard.server.logger import JsonLogger
from switchyard.server.worker import LAST_WRITES, RELEASE
from tests.conftest import ROOT
from tests.operations.conftest import KeysFile, entry

BUDGET = {"budget_tokens": 7, "budget_period": "day"}


@pytest.fixture
def keys(tmp_path):
    return KeysFile(tmp_path / "keys.toml").write(entry("ann"))


def config_of(values, **more):
    """What gunicorn makes of the values."""
    own = {"workers": 1, "worker_class": values["worker_class"], "preload_app": False}
    return SimpleNamespace(**{**own, "bind": [], "address": [], "worker_connections": 1, **more})


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
    assert values["keepalive"] == 5


def test_gunicorn_logs_as_the_settings_say(configure):
    values = configure()
    assert (values["loglevel"], values["logger_class"]) == ("info", Logger)
    values = configure(log_level="WARNING", log_format="json")
    assert (values["loglevel"], values["logger_class"]) == ("warning", JsonLogger)


def test_too_few_open_files_for_the_threads_are_told_with_the_need(configure, monkeypatch, capsys):
    monkeypatch.setattr(os, "_exit", sys.exit)
    num_files = 2 * configure()["threads"] + limits.OWN_FILES + 1
    monkeypatch.setattr(limits, "raise_open_files", lambda: num_files)
    values = configure()
    assert values["worker_connections"] == values["threads"] + 1
    monkeypatch.setattr(limits, "raise_open_files", lambda: num_files - 1)
    with pytest.raises(SystemExit):
        configure()
    assert f"at least {num_files} are needed\n" in capsys.readouterr().err


def test_keys_are_checked_by_settings_they_need(configure, keys, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "_exit", sys.exit)
    for fields, needed, refusal in (
        ({"priority": 7}, {"max_priority": 7}, "max_priority setting, "),
        (
            BUDGET,
            {"ledger": tmp_path / "usage.db"},
            "budget_tokens needs the server's ledger setting",
        ),
        ({"rmp": 5}, None, f"switchyard: keys_file {keys.path}: ann: "),
    ):
        keys.write(entry("ann", **fields))
        with pytest.raises(SystemExit) as ended:
            configure(keys_file=keys.path)
        assert ended.value.code == 1 and refusal in capsys.readouterr().err
        if needed is not None:
            configure(keys_file=keys.path, **needed)


def test_whoever_binds_beyond_this_machine_without_keys_is_warned(configure, keys):
    every = [("0.0.0.0", 80), ("::", 80, 0, 0)]
    every += [("127.0.0.2", 80), ("::1", 80, 0, 0), ("localhost", 80), "/run/socket", 3]
    for addresses, settings, count in (
        (every, {}, 1),
        (every, {"keys_file": keys.path}, 0),
        (every[2:], {}, 0),
    ):
        values = configure(**settings)
        log, cfg = MagicMock(), config_of(values, address=addresses)
        values["on_starting"](SimpleNamespace(cfg=cfg, log=log))
        assert log.warning.call_count == count
        assert log.info.call_args.args[1:] == (values["num_files"], 1)
        if count:
            assert log.warning.call_args.args[1] == "0.0.0.0:80, :::80"


def test_why_an_address_can_not_be_listened_on_is_told_as_it_is(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        taken_by = address.refusal(f"127.0.0.1:{taken.getsockname()[1]}")
    assert taken_by is not None and "is taken by another program" in taken_by
    with socket.create_server(("127.0.0.9", 65535)):
        told = address.refusal("127.0.0.9:65535")
    assert told is not None and told.endswith(" SWITCHYARD_BIND=127.0.0.9:1")
    elsewhere = address.refusal("192.0.2.1:80")  # for documentation: nobody's
    assert elsewhere == "can't listen on 192.0.2.1:80: Cannot assign requested address"
    taken = MagicMock()  # on a machine with IPv6, where another program has each address
    bind = taken.return_value.__enter__.return_value.bind
    bind.side_effect = OSError(errno.EADDRINUSE, "it is taken")
    monkeypatch.setattr(address, "socket", SimpleNamespace(**vars(socket) | {"socket": taken}))
    told = address.refusal("[::1]:8000")
    assert told is not None and told.endswith(" SWITCHYARD_BIND=[::1]:8001")
    assert (taken.call_args, bind.call_args) == (call(socket.AF_INET6), call(("::1", 8000)))


def test_an_address_is_awaited_only_while_another_server_has_it(monkeypatch):
    told, looks = [], itertools.count()

    def sleep(seconds):
        assert next(looks) < 100  # a wait that has no end
        time.sleep(seconds)

    clocks = {"time": time.time, "monotonic": time.monotonic, "sleep": sleep}
    monkeypatch.setattr(address, "time", SimpleNamespace(**clocks))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        assert "is taken" in address.refusal_after(bind, 0.0, told.append)
        assert told == []
        assert "is taken" in address.refusal_after(bind, 0.1, told.append)
        assert told == [f"{bind} is taken: waiting up to 0.1 s for it"]
        assert address.refusal_after(bind, 20.0, lambda _: taken.close()) is None
    begin = time.monotonic()
    assert "can't listen on" in address.refusal_after("192.0.2.1:80", 5.0, told.append)
    assert time.monotonic() - begin < 5 and len(told) == 1


def test_a_path_is_taken_though_its_server_is_too_busy_to_accept(tmp_path):
    path = str(tmp_path / "server.sock")
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        assert address.refusal(f"unix:{path}") is None
        listener.listen(0)
        with contextlib.suppress(BlockingIOError):
            for _ in range(10):
                one = stack.enter_context(socket.socket(socket.AF_UNIX))
                one.setblocking(False)
                one.connect(path)
        assert "is taken by another server" in address.refusal(f"unix:{path}")


def test_a_port_whose_last_server_has_just_ended_is_free():
    """Its last connections are remembered for a minute."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(listener.getsockname()) as client:
            listener.accept()[0].close()
            assert client.recv(1) == b""
    assert address.refusal(f"127.0.0.1:{port}") is None


@pytest.mark.parametrize("bind", ["127.0.0.1:65536", "127.0.0.1", "fd://3", ":", ""])
def test_an_unknown_form_of_address_is_gunicorn_s_to_refuse(bind):
    assert address.refusal(bind) is None
