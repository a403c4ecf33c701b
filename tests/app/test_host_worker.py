"""What the log of a host application says of the worker that runs it."""

import signal
import sys
import types

import flask
import pytest
from gunicorn.config import Config
from gunicorn.workers.gthread import ThreadWorker
from gunicorn.workers.sync import SyncWorker

from switchyard import engine
from switchyard.app import Switchyard
from switchyard.app.host import worker
from switchyard.app.host.worker import hint
from tests.conftest import run_code

OF_ITSELF = "loads its own models"
SYNC = "one request at a time"


@pytest.fixture(autouse=True)
def nothing_was_said():
    worker._warn.cache_clear()
    yield
    worker._warn.cache_clear()


@pytest.fixture
def run_by(monkeypatch):
    """Have this process look as if a worker of gunicorn's ran it."""
    before = signal.getsignal(signal.SIGTERM)

    def run_by(kind, num_workers):
        config = Config()
        config.set("workers", num_workers)
        worker = object.__new__(kind)
        worker.cfg, worker.alive = config, True
        signal.signal(signal.SIGTERM, worker.handle_exit)

    yield run_by
    signal.signal(signal.SIGTERM, before)


def warnings_of(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "switchyard.app.host.worker"]


@pytest.mark.parametrize(
    ("kind", "num_workers", "of_any", "of_its_own"),
    [
        (SyncWorker, 4, [SYNC], [SYNC, "each of 4 worker processes", OF_ITSELF]),
        (SyncWorker, 1, [SYNC], [SYNC]),
        (ThreadWorker, 4, [], [OF_ITSELF]),
        (ThreadWorker, 1, [], []),
    ],
)
def test_what_a_worker_is_not_made_for_is_told_once(
    run_by, caplog, model_path, kind, num_workers, of_any, of_its_own
):
    run_by(kind, num_workers)
    hosts = [Switchyard(flask.Flask("host"), url="http://127.0.0.1:1") for _ in range(2)]
    for host in hosts * 2:  # in client mode
        with pytest.raises(engine.Dead):
            host.generate("x")
    found = warnings_of(caplog)
    assert len(found) == len(of_any) and all(map(str.__contains__, found, of_any))
    caplog.clear()
    worker._warn.cache_clear()
    Switchyard(flask.Flask("host"), model=model_path)
    found = warnings_of(caplog)
    assert len(found) == bool(of_its_own)
    assert all(part in found[0] for part in of_its_own)


@pytest.mark.parametrize(
    ("options", "num_processes", "has_models", "said"),
    [
        ({"threads": b"8"}, 1, True, None),
        ({"enable-threads": True}, 1, True, None),
        ({"enable-threads": True}, 4, True, OF_ITSELF),
        ({}, 1, True, "uWSGI generates text only while it handles a request"),
        ({}, 4, False, None),
    ],
)
def test_uwsgi_is_told_of_too(monkeypatch, caplog, options, num_processes, has_models, said):
    uwsgi = types.SimpleNamespace(numproc=num_processes, opt=options)
    monkeypatch.setitem(sys.modules, "uwsgi", uwsgi)
    hint(has_models)
    found = warnings_of(caplog)
    assert found == [] if said is None else said in found[0]


EXTRAS = """
import flask, logging, sys
sys.modules['flask_sock'] = sys.modules['flask_swagger_ui'] = None  # not installed
told = []
class Handler(logging.Handler):
    def emit(self, record):
        told.append((record.levelname, record.getMessage()))
logging.getLogger('switchyard.engine').propagate = False
logging.basicConfig(level='INFO', handlers=[Handler()])
from switchyard import Switchyard
Switchyard(flask.Flask('host'))
assert [level for level, _ in told] == ['INFO', 'INFO'], told
assert 'switchyard[websocket]' in told[0][1] and 'switchyard[docs]' in told[1][1]
"""


def test_extras_that_are_not_installed_are_no_warning():
    """An application logs warnings without any configuration, and its suite makes many."""
    run_code(EXTRAS)
