"""An engine's supervisor, before it starts one: what it refuses, and what it remembers."""

import time

import pytest

from switchyard.app import read_settings
from switchyard.cluster import supervisor
from switchyard.cluster.processes import failures
from switchyard.cluster.processes.engine_process import EngineFailed
from switchyard.cluster.processes.failures import Failures
from switchyard.cluster.supervisor import Supervisor
from switchyard.cluster.wanted import wanted


class Failing:
    """In place of an engine's process."""

    starts = 0

    def __init__(self, *_):
        pass

    def start(self, ended):
        Failing.starts += 1
        raise EngineFailed("the engine ended with status 3: no memory")

    def end(self, grace):
        pass


class Kept(dict):
    """In place of Ray's store."""

    def get(self, key):
        return super().get(key, "")

    def put(self, key, value):
        self[key] = value


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a supervisor with the settings of `apply`. Returns its fault."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (tmp_path / "switchyard.toml").write_text(
        f'link = "socket"\nengine_key_file = "/key"\n[[models]]\nname = "llama"\n'
        f'model = "{model}"\nat = ["cluster"]\n[cluster]\nhead = "10.0.0.1"\n'
        f'network = "10.0.0.0/24"\nstate_dir = "{tmp_path}"\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("switchyard.app.table_settings.MAX_STATE_DIR", 400)
    monkeypatch.setattr(supervisor, "EngineProcess", Failing)
    monkeypatch.setattr(Failing, "starts", 0)

    def start(version=None, files="", apply="1"):
        [here] = wanted(read_settings())
        start.failures = Failures(store, "llama", "10.0.0.2", apply)
        with pytest.raises(RuntimeError) as caught:
            Supervisor("llama", version or here.version, "10.0.0.2", files, start.failures)
        told = str(caught.value)
        assert told.startswith("10.0.0.2: ") and "\n" not in told
        return told.removeprefix("10.0.0.2: ")

    store, start.model = Kept(), model
    return start


def test_settings_of_another_version_are_refused(start):
    told = start("v9")
    assert told.startswith("the settings of llama are version")
    assert told.endswith("apply ran with v9: copy the settings file, or install the same version")


def test_other_files_are_refused_with_both_fingerprints(start):
    [here] = wanted(read_settings())
    own = here.files()
    assert start(files=own) == start(files="") == "the engine ended with status 3: no memory"
    assert start(files="fp_1", apply="2") == (
        f"{start.model} has the files {own}, but apply ran with fp_1: copy the model"
    )
    for apply, lose in ("3", (start.model / "config.json").unlink), ("4", start.model.rmdir):
        lose()  # an emptied directory, and none
        assert start(files=own, apply=apply) == (
            f"{start.model} has no model, but apply ran with {own}: copy the model"
        )
        assert here.files() == ""  # where `apply` runs


def test_after_three_failures_a_machine_rests_for_five_minutes(start, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(failures.time, "time", lambda: now[0])
    reason = "the engine ended with status 3: no memory"
    assert [start() for _ in range(3)] == [reason] * 3
    now[0] += 1.0
    then = time.strftime("%H:%M:%S", time.localtime(1300.0))
    assert start() == f"failed 3 times, next try at {then}: {reason}"
    assert Failing.starts == 3
    now[0] += 299.0
    assert start() == reason and Failing.starts == 4
    assert "failed 4 times" in start()
    assert start(apply="2") == reason  # somebody may have mended it


def test_an_engine_that_starts_ends_the_count(start, monkeypatch):
    start(), start()
    monkeypatch.setattr(Failing, "start", lambda self, ended: None)
    [here] = wanted(read_settings())
    assert start.failures.line() == "the engine ended with status 3: no memory"
    Supervisor("llama", here.version, "10.0.0.2", "", start.failures)
    assert start.failures.line() == ""
