"""What gunicorn calls at its events: switchyard/server/conf.py, without a server."""

import logging
import os
import signal
import sys
from types import SimpleNamespace

import pytest

from switchyard import server
from switchyard.server.worker import BOOT_ERROR, RELEASE
from tests.app.test_server_conf import config_of, configure, keys

__all__ = ["configure", "keys"]


class Said(list):
    """Calls of any method: name and arguments."""

    def __getattr__(self, name):
        return lambda *args, **more: self.append((name, *args, *more.values()))


@pytest.fixture
def handlers():
    """Restores the handlers of signals."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGRTMIN)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_drains_and_the_next_end(configure, handlers, first, second):
    values = configure(grace=33)
    hooks = values["when_ready"].__globals__
    hooks["notifier"] = told = Said()
    sent, errors = [], []
    server = SimpleNamespace(
        signal=lambda number, frame: sent.append(number),
        log=SimpleNamespace(error_log=logging.Logger("g"), error=errors.append),
        murder_workers=lambda: None,
    )
    values["when_ready"](server)
    signal.getsignal(signal.SIGRTMIN)(signal.SIGRTMIN, None)  # /admin/drain
    assert sent == [signal.SIGTERM]
    for number in (first, second, second):
        signal.getsignal(number)(number, None)
    assert sent[1:] == [signal.SIGTERM, signal.SIGQUIT, signal.SIGQUIT]
    assert told == 2 * [("tell_end", values["graceful_timeout"])]  # none at those that end it now
    for hook, name in ((server.handle_hup, "SIGHUP"), (server.handle_usr2, "SIGUSR2")):
        hook()
        assert errors.pop().startswith(f"{name} is refused")
    assert sent[4:] == []


@pytest.mark.parametrize(
    ("message", "args", "is_told"),
    [
        ("Worker (pid:%s) exited with code %s", (7, BOOT_ERROR), False),
        ("Worker (pid:%s) exited with code %s", (7, 1), True),
        ("Worker (pid:%s) was sent SIG%s!", (7, "KILL"), True),
        ("Reason: %s", ("Worker failed to boot.",), False),
        ("Reason: %s", ("App failed to load.",), True),
    ],
)
def test_that_a_model_could_not_load_is_said_once(configure, message, args, is_told):
    record = logging.LogRecord("gunicorn.error", logging.ERROR, "", 0, message, args, None)
    assert configure()["_is_news"](record) is is_told


def test_what_systemd_listens_on_is_not_tried(configure, monkeypatch):
    values = configure()
    hooks = values["on_starting"].__globals__
    tried = []
    hooks["address"] = SimpleNamespace(refusal_after=lambda bind, *_: tried.append(bind))
    cfg = config_of(values, bind=["127.0.0.1:1", "[::1]:2"])
    server = SimpleNamespace(cfg=cfg, log=Said())
    values["on_starting"](server)
    assert tried == cfg.bind
    monkeypatch.setenv("LISTEN_FDS", "1")
    values["on_starting"](server)
    assert tried == cfg.bind


class Listener(str):
    FAMILY = 2  # AF_INET


class Path(Listener):
    FAMILY = 1  # AF_UNIX


def test_the_line_to_try_is_one_for_a_shell(configure):
    where = configure()["_address"]
    assert where(Listener("http://127.0.0.1:8000")) == 2 * ("http://127.0.0.1:8000",)
    assert where(Path("unix:/run/my own/s")) == (
        "unix:/run/my own/s",
        "--unix-socket '/run/my own/s' http://localhost",
    )


@pytest.mark.parametrize(("hook", "seconds"), [("worker_int", 1), ("worker_exit", RELEASE)])
def test_models_are_given_so_long_to_end(configure, monkeypatch, hook, seconds):
    values, models = configure(), Said()
    call = values[hook]
    monkeypatch.setitem(sys.modules, "switchyard.server.wsgi", SimpleNamespace(models=models))
    call(*[None] * (1 + (hook == "worker_exit")))
    assert models == [("close", seconds)]
    monkeypatch.delitem(sys.modules, "switchyard.server.wsgi")  # in the master
    call(*[None] * (1 + (hook == "worker_exit")))


class Ended(Exception):
    """The process."""


@pytest.mark.parametrize(
    ("is_loaded", "lost", "status"),
    [
        (True, [None], 1),  # lost for good: another worker is started
        (True, ["stopped", None], 1),
        (False, [None], BOOT_ERROR),  # and none for a model that can't load
        (True, ["stopped"], None),
    ],
)
def test_a_worker_without_an_engine_ends(configure, monkeypatch, capsys, is_loaded, lost, status):
    values = configure()
    hooks = values["_watch"].__globals__
    hooks["notifier"] = told = Said()
    engines = iter([SimpleNamespace(error=None if one else Ended()) for one in lost])
    models = SimpleNamespace(
        names=["a", "b"],
        wait_until_loaded=lambda: is_loaded,
        wait_until_stopped=lambda: next(engines, None),
    )
    worker, logs = Said(), Said()

    def end(number):
        raise Ended(number)

    monkeypatch.setattr(os, "_exit", end)
    wsgi = SimpleNamespace(models=models, logs=logs)
    if status is None:
        values["_watch"](worker, wsgi, "here", "there")
        assert logs == []
    else:
        with pytest.raises(Ended) as caught:
            values["_watch"](worker, wsgi, "here", "there")
        assert caught.value.args == (status,)
        assert logs == [("stop",)]  # with the last line written
    assert worker == ([("make_room", 1)] if is_loaded and status else [])
    assert told == ([("tell", "READY=1")] if is_loaded else [])
    said = capsys.readouterr().out
    assert ("Switchyard serves a, b at here" in said and "curl -N there/v1" in said) is is_loaded
    assert "Authorization" not in said


def test_the_line_to_try_names_the_key_where_one_is_needed(configure, keys, capsys):
    watch = configure(keys_file=keys.path)["_watch"]
    watch.__globals__["notifier"] = Said()
    waits = {"wait_until_loaded": lambda: True, "wait_until_stopped": lambda: None}
    models = SimpleNamespace(names=["a"], **waits)
    watch(None, SimpleNamespace(models=models), "here", "there")
    assert "-H 'Authorization: Bearer KEY' " in capsys.readouterr().out


def test_the_master_looks_at_its_worker_unless_all_has_stood_still(configure):
    patience = configure()["Patience"]
    now, looks = [1000.0], []
    hooks = patience.__call__.__globals__
    hooks["time"] = SimpleNamespace(monotonic=lambda: now[0])
    look = patience(lambda: looks.append(now[0]))
    for seconds in (1, 1, 3600, 1, 4.9, 5.1, 1):
        now[0] += seconds
        look()
    assert looks == [1001, 1002, 4603, pytest.approx(4607.9), pytest.approx(4614)]


@pytest.mark.parametrize(
    ("old", "new", "is_refused"), [(None, 1, False), (1, 2, True), (2, 1, False), (1, 0, False)]
)
def test_no_signal_makes_a_second_worker(configure, old, new, is_refused):
    values, log = configure(), Said()
    master = SimpleNamespace(log=log, num_workers=new)
    values["nworkers_changed"](master, new, old)
    assert master.num_workers == (1 if is_refused else new)
    assert log == ([("error", values["ONE_WORKER"])] if is_refused else [])


def test_systemd_hears_of_a_worker_before_its_long_import(configure):
    values = configure()
    values["post_fork"].__globals__["notifier"] = told = Said()
    values["post_fork"](None, None)
    assert told == [("tell", "WATCHDOG=1")]


@pytest.mark.parametrize("is_on", [True, False])
def test_a_worker_is_watched_and_systemd_told_if_it_listens(configure, monkeypatch, is_on):
    values, begun = configure(), []
    hooks = values["post_worker_init"].__globals__
    hooks["notifier"] = SimpleNamespace(is_on=is_on)
    hooks["threading"] = SimpleNamespace(
        Thread=lambda **more: begun.append(more) or SimpleNamespace(start=lambda: begun.append(1))
    )
    wsgi = SimpleNamespace(models=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "switchyard.server.wsgi", wsgi)
    monkeypatch.setattr(server, "wsgi", wsgi, raising=False)
    worker = SimpleNamespace(sockets=[Listener("http://here:1"), Listener("http://there:2")])
    values["post_worker_init"](worker)
    threads = [one for one in begun if one != 1]
    assert [one["name"] for one in threads] == (["pulse", "watch"] if is_on else ["watch"])
    assert begun.count(1) == len(threads) and all(one["daemon"] for one in threads)
    assert threads[-1]["args"] == (worker, wsgi, "http://here:1", "http://here:1")


def test_a_worker_is_told_of_each_answer(configure):
    worker = Said()
    configure()["post_request"](worker, None, None, "response")
    assert worker == [("note_answer", "response")]
