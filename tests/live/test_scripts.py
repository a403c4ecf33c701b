"""scripts/serve and scripts/bootstrap in a checkout where nothing is installed yet."""

import os
import shutil
import socket
import sys

import pytest

from tests.conftest import DEMO
from tests.live.conftest import run_script


def test_help_comes_before_anything_is_installed(checkout):
    for name in ("serve", "bootstrap"):
        done = run_script(checkout, "--help", script=name)
        assert done.returncode == 0 and f"Usage: {name}" in done.stdout
    assert run_script(checkout, "--port", "1").returncode == 2
    assert run_script(checkout, "a", "b").returncode == 2
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("missing", "model directory missing does not exist"),
        ("turboderp/Llama-3-exl2", "hf download turboderp/Llama-3-exl2"),
        ("model.gguf", "GGUF, llama.cpp's format"),
        ("models", "models is no model, but has 1 inside: give one of them, such as models/demo"),
        ("requirements.txt", "give the directory that has all of a model's files"),
    ],
)
def test_a_wrong_model_is_told_before_anything_is_installed(checkout, given, says):
    (checkout / "model.gguf").write_bytes(b"GGUF")
    for done in (run_script(checkout, given), run_script(checkout, SWITCHYARD_MODEL=given)):
        assert done.returncode == 3 and says in done.stderr
        assert done.stderr.count("\n") == 1
    (checkout / "switchyard.toml").write_text(f'model = "{given}"\n')
    assert says in run_script(checkout).stderr
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize("draft", [None, "models/draft"])
def test_a_model_that_can_not_be_loaded_here_is_told_as_by_check(checkout, draft):
    """Quantized, where there is no GPU; and cut off."""
    model = checkout / (draft or "models/other")
    shutil.copytree(f"{DEMO}-exl2", model)
    more = {"SWITCHYARD_MODEL": str(checkout / "models/demo" if draft else model)}
    if draft:
        more["SWITCHYARD_DRAFT_MODEL"] = draft
    says = ["the weights are quantized: only a CUDA device can serve them"]
    done = [run_script(checkout, **more)]
    weights = model / "output.safetensors"
    size = weights.stat().st_size
    weights.write_bytes(weights.read_bytes()[:-100])
    says.append(f"it is cut off, {size - 100} of {size} bytes; fetch it once more, whole")
    done.append(run_script(checkout, **more))
    for each, said in zip(done, says, strict=True):
        assert each.returncode == 3 and said in each.stderr
        assert each.stderr.count("\n") == 1
    assert not (checkout / ".venv").exists()


def test_a_taken_port_is_told_before_anything_is_installed(checkout):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        bind = f"127.0.0.1:{listener.getsockname()[1]}"
        done = run_script(checkout, SWITCHYARD_BIND=bind)
    assert done.returncode == 3 and f"{bind} is taken by another program" in done.stderr
    done = run_script(checkout, SWITCHYARD_BIND="192.0.2.1:80")
    assert done.returncode == 3 and "can't be listened on" in done.stderr
    assert not (checkout / ".venv").exists()


SERVED = "served glibc.malloc.tcache_count=0\n"


@pytest.fixture
def installed(checkout):
    """All that the stamps say is there; gunicorn is a word."""
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        '#!/bin/sh\n[ "$2" = gunicorn ] && echo "served $GLIBC_TUNABLES" && exit\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    (checkout / ".venv" / "requirements.txt.installed").write_text("")
    (checkout / ".venv" / ".place").write_text(f"{checkout}\n")
    return checkout


def test_where_all_is_installed_nothing_is_written(installed):
    """As by a service user, who may not, and has no home."""

    def seen():
        return {path: path.lstat().st_mtime_ns for path in installed.rglob("*")}

    before = seen()
    done = run_script(installed, SWITCHYARD_BIND="127.0.0.1:0")
    assert (done.returncode, done.stdout, done.stderr) == (0, SERVED, "")
    assert seen() == before


def test_a_checkout_that_can_not_be_written_to_and_lacks_packages_is_told_in_one_line(checkout):
    (checkout / ".venv.lock").mkdir()  # root, too, can't write to that
    done = run_script(checkout, SWITCHYARD_BIND="127.0.0.1:0")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert f"{checkout} can't be written to, and lacks packages: run" in done.stderr


def test_a_checkout_that_was_moved_serves(installed, tmp_path):
    moved = installed.rename(tmp_path / "moved")
    done = run_script(moved, SWITCHYARD_BIND="127.0.0.1:0")
    assert (done.returncode, done.stdout, done.stderr) == (0, SERVED, "")


def test_an_operators_own_tunables_stay(installed):
    own = {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"}
    assert run_script(installed, SWITCHYARD_BIND="127.0.0.1:0", **own).stdout == (
        "served glibc.malloc.arena_max=2\n"
    )


def test_packages_are_installed_once_and_again_when_the_file_changes(checkout):
    files = ("requirements.txt", "requirements-dev.txt")
    requirements = checkout / "requirements.txt"
    (checkout / "requirements-dev.txt").write_text("")

    def bootstrap():
        more = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        return run_script(checkout, *files, script="bootstrap", **more)

    assert bootstrap().stderr.splitlines() == [f"switchyard: installing {name}" for name in files]
    assert bootstrap().stderr == ""
    (checkout / "requirements-dev.txt").write_text("# another\n")
    assert bootstrap().stderr == "switchyard: installing requirements-dev.txt\n"
    requirements.write_text("no-such-package-of-switchyard==9\n")
    failed = bootstrap()
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1] == (
        "switchyard: pip could not install requirements.txt; see above"
    )


def test_python_is_missing(checkout, tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("dirname", "sed"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    done = run_script(checkout, PATH=str(tmp_path / "bin"))
    assert done.returncode == 1
    assert "Python 3.11 to 3.14 is missing" in done.stderr and "uv python install" in done.stderr
