"""`switchyard check` of engines that servers share."""

from functools import partial

import pytest

from switchyard.engine.config import ModelConfig
from switchyard.engine.links.hosts.host import Host
from switchyard.engine.links.thread import EngineThread
from switchyard.engine.model.model_dir import ModelDir
from tests.scripted import ScriptedBackend


@pytest.fixture
def engine(model_path, tmp_path):
    """The address of an engine that is loaded once its backend may open, and the backend."""
    backend = ScriptedBackend()
    backend.opening.clear()
    config = ModelConfig(model_path, "m", "cpu")
    at = f"unix:{tmp_path}/e.sock"
    over_thread = partial(EngineThread, config, lambda: backend)
    host = Host(config, over_thread, at, b"", ModelDir.read(model_path).fingerprint)
    host.start()
    yield at, backend, host
    backend.opening.set()
    assert host.close(timeout=20)


def test_a_probe_of_one_engine_is_good_once_it_has_loaded(switchyard, engine, tmp_path):
    at, backend, host = engine
    assert "is loading its model" in switchyard.told(1, "check", "--engine", at)
    backend.opening.set()
    while not host.is_loaded:
        host.wait(0.01)
    assert f"{at} is ready, in process" in switchyard.told(0, "check", "--engine", at)
    for wrong, says in (
        (f"unix:{tmp_path}/none", "No such file"),
        ("10.0.0.1:7000", "needs a key"),
        ("file:/a", "must be unix:PATH or HOST:PORT"),
    ):
        assert says in switchyard.told(1, "check", "--engine", wrong)


def test_each_engine_that_a_source_names_is_asked(switchyard, engine, model_path, tmp_path):
    source = tmp_path / "engines"
    command = ("check", model_path, "--set", "link=socket", "--set", f'at=["file:{source}"]')
    assert f"No such file or directory: '{source}'" in switchyard.told(1, *command)
    source.write_text(f"{engine[0]}\nunix:{tmp_path}/none\n")
    told = switchyard(*command).output
    assert f"{engine[0]} is served by process" in told
    assert f"✗ engine: tiny: unix:{tmp_path}/none: " in told
