"""Claims on models, which tell processes of a user of each other."""

import os

import pytest

from switchyard.app.host.claims import ModelClaim


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """The directory of the claims' files, and the model's beside it."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def test_a_claim_is_a_file_with_the_process_s_id_alone(runtime):
    ModelClaim("/models/mine").release()
    [file] = runtime.iterdir()
    file.write_text("4194304, of a process with a longer id")
    claim = ModelClaim("/models/mine")
    assert file.read_text() == str(os.getpid())
    assert file.stat().st_mode & 0o777 == 0o600
    claim.release()
    claim.release()
    assert len(list(runtime.iterdir())) == 1


def test_a_claim_writes_into_no_file_that_a_link_names(runtime):
    ModelClaim("/models/mine").release()
    [file] = runtime.iterdir()
    file.unlink()
    (runtime / "precious").write_text("kept")
    file.symlink_to(runtime / "precious")
    ModelClaim("/models/mine").release()
    assert (runtime / "precious").read_text() == "kept"


def test_without_a_place_for_its_file_there_is_no_claim_and_no_error(runtime):
    runtime.rmdir()
    ModelClaim("/models/mine").release()
