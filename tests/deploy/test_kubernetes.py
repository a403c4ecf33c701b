"""The files of deploy/kubernetes: rendered, valid, and of one mind with the settings."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from switchyard.app.config import read_settings
from tests.conftest import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
BESIDE = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", "")])


def tool(name):
    if (found := shutil.which(name, path=BESIDE)) is None:
        if os.environ.get("SWITCHYARD_KUBERNETES") == "required":
            pytest.fail(f"{name} is not here")
        pytest.skip(f"{name} is not here: scripts/test-kubernetes needs it")
    return found


@pytest.mark.parametrize("folder", [".", "cluster"])
def test_it_renders_and_is_valid(folder, tmp_path):
    kubectl, validate = tool("kubectl"), tool("kubernetes-validate")
    rendered = tmp_path / "rendered.yaml"
    with rendered.open("w") as file:
        subprocess.run([kubectl, "kustomize", FOLDER / folder], check=True, stdout=file)
    examples = (FOLDER / folder).glob("scaling.yaml")
    done = subprocess.run(
        [validate, "--strict", rendered, *examples], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_settings_of_a_cluster_are_what_its_pods_have(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWITCHYARD_CONFIG", str(FOLDER / "cluster" / "switchyard.toml"))
    [model] = read_settings().tables()
    engines, servers = (
        (FOLDER / "cluster" / f"{one}.yaml").read_text() for one in ("engines", "servers")
    )
    assert model.at == ["dns:engines-llama:7000"] and f"name: engines-{model.name}" in engines
    assert f'[switchyard, engine, --name, {model.name}, --at, "$(POD_IP):7000"]' in engines
    for text in (engines, servers):
        assert "mountPath: /keys" in text and model.engine_key_file.startswith("/keys/")
        assert "mountPath: /models" in text and model.model.startswith("/models/")
