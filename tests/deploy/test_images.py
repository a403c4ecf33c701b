"""What the images of deploy/container get of a checkout, by its ignore files and COPY lines."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from docker.utils.build import exclude_paths

from switchyard import __version__
from tests.conftest import ROOT

# Where the documentation, or habit, puts an owner's own files.
OWN = [
    *("keys.toml", "switchyard.toml", "usage.db", "usage.db-wal", "access.log", ".env"),
    *("models/mine/model.safetensors", "deploy/container/metrics.key", "switchyard/metrics.key"),
    *("deploy/container/keys/keys.toml", "app/keys.toml", "scripts/tls.pem", ".venv/pyvenv.cfg"),
]
DOCKERFILES = ["Dockerfile", "Dockerfile.cuda"]


@pytest.fixture(scope="module")
def project():
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    return subprocess.check_output(listed, cwd=ROOT, text=True).rstrip("\0").split("\0")


@pytest.fixture(scope="module")
def checkout(project, tmp_path_factory):
    """All files of the project, committed, and the owner's own."""
    place = tmp_path_factory.mktemp("checkout")
    for path in project:
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, place / path, follow_symlinks=False)
    person = ["-c", "user.name=name", "-c", "user.email=name@example.com"]
    for command in (["init", "-q"], ["add", "-A"], [*person, "commit", "-qm", "All"]):
        subprocess.run(["git", *command], cwd=place, check=True)
    for path in OWN:
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text("own")
    return place


@pytest.fixture(scope="module")
def context(checkout):
    """The files that Docker's client sends, by the rules of its own library."""
    lines = (checkout / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    found = ((path, checkout / path) for path in exclude_paths(checkout, rules))
    return {path for path, file in found if file.is_file() or file.is_symlink()}


def test_an_owners_files_reach_neither_an_image_nor_a_commit(checkout, context, project):
    assert context <= {*project}
    status = subprocess.check_output(["git", "status", "--porcelain"], cwd=checkout, text=True)
    assert status == ""


def test_no_file_of_the_project_is_ignored_by_git(project):
    done = subprocess.run(
        ["git", "check-ignore", "--no-index", "--stdin"],
        **{"cwd": ROOT, "input": "\n".join(project), "capture_output": True, "text": True},
    )
    assert done.stdout == ""


@pytest.mark.parametrize("name", DOCKERFILES)
def test_what_an_image_gets_is_enough_for_a_server(context, tmp_path, name):
    text = (ROOT / "deploy" / "container" / name).read_text()
    for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE):
        *sources, target = line.split()
        for source in sources:
            found = {path for path in context if path == source or path.startswith(f"{source}/")}
            assert found, f"{source} is not in the context"
            for path in found:
                to = tmp_path / (path if target == "./" else target + path.removeprefix(source))
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / path, to, follow_symlinks=False)
    subprocess.run(["chmod", "-R", "go-rwx", tmp_path], check=True)  # a clone under umask 077
    subprocess.run(re.search(r"^RUN (chmod [^&]+)", text, re.M)[1], shell=True, cwd=tmp_path)
    for path in tmp_path.rglob("*"):
        mode = path.stat().st_mode
        assert mode & 0o007 == (mode >> 6) & 0o005, f"{path} is not for the image's user"
    environment = {**os.environ, "SWITCHYARD_BIND": "127.0.0.1:0"}
    environment.pop("PYTHONPATH", None)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else each command compiles its imports
    for command in (
        ["-m", "switchyard", "check"],
        ["-m", "gunicorn", "--check-config", "-c", "gunicorn.conf.py"],
        ["scripts/preflight.py"],
        ["-m", "py_compile", "deploy/container/healthy.py"],
    ):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    for script in ("bootstrap", "serve"):
        assert not subprocess.run([tmp_path / "scripts" / script, "--help"]).returncode


def test_the_cluster_takes_the_image_that_the_page_builds():
    folder = ROOT / "deploy"
    text = (folder / "kubernetes" / "kustomization.yaml").read_text()
    image, tag = (re.search(rf'{key}: "?([^"\n]+)', text)[1] for key in ("newName", "newTag"))
    assert tag == f"{__version__}-cuda"
    page = (folder / "README.md").read_text()
    assert f"-t {image}:{tag} ." in page and f"docker push {image}:{tag}\n" in page
