"""What a host application with models in its process starts, holds and gives back."""

import contextlib
import fcntl
import sqlite3
import threading

import pytest

from switchyard.app import BadRequest
from switchyard.app.host.tables import TABLES
from switchyard.app.services import KEY
from switchyard.testing import fake
from tests.conftest import wait_for
from tests.operations.conftest import KeysFile, entry
from tests.scripted import ScriptedBackend

UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
UPGRADE["Sec-WebSocket-Key"] = "x3JJHMbDL1EzLkh9GBhXDw=="


@pytest.fixture(autouse=True)
def scripted(open_models):
    """No model is a real one."""
    open_models()


@pytest.fixture
def submitted(monkeypatch):
    """The jobs that an extension's model gets, which it has to have started."""

    def submitted(switchyard):
        switchyard.start()
        model, jobs = switchyard.models.get(), []
        submit = model.submit
        monkeypatch.setattr(
            model, "submit", lambda new, *more: jobs.extend(new) or submit(new, *more)
        )
        return jobs

    return submitted


def test_what_a_host_generates_is_in_its_ledger_once_it_is_closed(make_host, tmp_path):
    _, switchyard = make_host(ledger=str(tmp_path / "usage.db"))
    for number in (1, 2):
        with switchyard:
            assert switchyard.generate("x", max_tokens=2).completion_tokens == 2
        with contextlib.closing(sqlite3.connect(tmp_path / "usage.db")) as file:
            found = file.execute("SELECT count(*) FROM requests WHERE state = 'done'").fetchone()
        assert found == (number,)
        assert "ledger" not in [thread.name for thread in threading.enumerate()]


def test_a_ledger_is_closed_behind_the_models(make_host, tmp_path, monkeypatch):
    app, switchyard = make_host(ledger=str(tmp_path / "usage.db"))
    ledger, are_over = app.extensions[KEY].ledger, []
    close = ledger.close
    monkeypatch.setattr(ledger, "close", lambda: are_over.append(models.is_over) or close())
    with switchyard:
        models = switchyard.models
    assert are_over == [True]


def test_a_fake_answers_for_an_application_that_was_closed(make_host):
    app, switchyard = make_host()
    switchyard.start()
    switchyard.close()
    with fake(app, {"color": "Blue."}):
        assert switchyard.generate("color").text == "Blue."


def test_the_own_models_run_on_though_a_fake_is_closed(make_host):
    app, switchyard = make_host()
    switchyard.start()
    own = switchyard.models
    with fake(app), switchyard:
        pass
    assert switchyard.generate("x", max_tokens=1).text == "0 "
    assert switchyard.models is own


def test_what_is_closed_gives_its_claim_on_the_model_back(make_host, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    _, switchyard = make_host()
    switchyard.start()
    [claim] = tmp_path.iterdir()
    with claim.open() as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        switchyard.close()
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_websocket_starts_the_models_though_it_begins_with_get(make_host):
    app, switchyard = make_host()
    app.test_client().get("/v1/stream", headers=UPGRADE)
    assert switchyard.models.get().is_started


def test_a_generation_holds_its_engine_until_its_end_at_most(make_host):
    app, switchyard = make_host()
    for context in (contextlib.nullcontext(), app.app_context()):
        with context:
            assert switchyard.generate("x", max_tokens=1).text == "0 "
            assert switchyard.models.status().num_leases == 0


def test_a_model_on_demand_is_not_waited_for(make_host, model_path):
    tables = [{"model": model_path, "name": name} for name in ("first", "second")]
    tables[1]["load"] = "demand"
    _, switchyard = make_host(models=tables)
    assert switchyard.generate("x", max_tokens=1).text == "0 "
    assert not switchyard.models.get("second").is_started


def test_without_keys_a_thread_of_the_host_is_no_key(make_host, submitted):
    _, switchyard = make_host()
    jobs = submitted(switchyard)
    assert switchyard.generate("x", max_tokens=1).text == "0 "
    assert [(job.client, job.owner) for job in jobs] == [("local", "local")]


def test_with_keys_the_host_is_one_client_whoever_visits_it(make_host, submitted, tmp_path):
    keys = KeysFile(tmp_path / "keys.toml").write(entry("ann"))
    app, switchyard = make_host(keys_file=str(keys.path))
    jobs = submitted(switchyard)
    visit = app.test_request_context(environ_base={"REMOTE_ADDR": "192.0.2.7"})
    for context in (contextlib.nullcontext(), visit):
        with context:
            assert switchyard.generate("x", max_tokens=1).text == "0 "
    assert [(job.client, job.owner) for job in jobs] == [("key:host", "key:host")] * 2


def test_presets_are_those_of_the_settings(make_host):
    _, switchyard = make_host(presets={"brief": {"temperature": 0}})
    assert switchyard.generate("x", preset="brief", max_tokens=1).text == "0 "
    with pytest.raises(BadRequest) as caught:
        switchyard.generate("x", preset="long")
    assert caught.value.param == "preset"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("load_wait", 1.0), ("max_loaded", 2), ("default_model", "second")),
        ("model_aliases", {"chat": "first"}),
    ],
)
def test_applications_of_other_settings_share_no_models(make_host, model_path, name, value):
    tables = [{"model": model_path, "name": name} for name in ("first", "second")]
    one, alike, other = (make_host(models=tables, **more)[1] for more in ({}, {}, {name: value}))
    assert one.models is alike.models and one.models is not other.models


def test_at_the_process_s_end_jobs_may_go_on_for_grace(make_host, open_models, gate):
    open_models(lambda config: ScriptedBackend(gate=gate))
    _, switchyard = make_host(grace=20.0)
    gate.step(2)
    stream = switchyard.stream("x", max_tokens=3)
    ending = threading.Thread(target=TABLES._close_all)  # which atexit calls
    ending.start()
    wait_for(lambda: switchyard.models.get().state != "ready")
    gate.open()
    assert list(stream) == ["0 ", "1 ", "2 "]
    assert stream.result.finish_reason == "length"
    ending.join(20)


def test_the_ledgers_of_all_that_share_models_are_closed_at_the_process_s_end(make_host, tmp_path):
    for name in ("first", "second"):
        app, switchyard = make_host(ledger=str(tmp_path / f"{name}.db"))
        switchyard.start()
        app.extensions[KEY].ledger.start()
    TABLES._close_all()
    assert "ledger" not in [thread.name for thread in threading.enumerate()]


def test_the_end_of_a_fork_closes_no_models(make_host, monkeypatch):
    _, switchyard = make_host()
    with switchyard, monkeypatch.context() as child:
        child.setattr(TABLES, "_process", 1)
        TABLES._close_all()
        assert not switchyard.models.is_over
