"""A release is made of a committed, dated version without a tag, or not at all."""

import subprocess

import pytest

import switchyard
from tests.conftest import ROOT

VERSION = switchyard.__version__


def run(place, *command):
    return subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)


@pytest.fixture
def checkout(tmp_path):
    """A repository with what the script reads before it builds anything."""
    for name in ("scripts/release", "switchyard/__init__.py", "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "scripts" / "release").chmod(0o755)
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {VERSION} (2026-11-22)\n")
    run(tmp_path, "git", "init", "-q")
    run(tmp_path, "git", "add", "-A")
    commit(tmp_path)
    return tmp_path


def commit(place):
    person = ["-c", "user.name=name", "-c", "user.email=name@example.com"]
    assert not run(place, "git", *person, "commit", "-qam", "All").returncode


def unsaved(place):
    (place / "new.py").write_text("")
    return "first commit or remove the files that git status shows"


def tagged(place):
    run(place, "git", "tag", f"v{VERSION}")
    return f"the tag v{VERSION} already exists"


def undated(place):
    (place / "CHANGELOG.md").write_text(f"## {VERSION} (unreleased)\n")
    commit(place)
    return f"CHANGELOG.md has no line '## {VERSION} (2"


def nameless(place):
    run(place, "git", "config", "user.name", "")
    return "git has no name and address for the tag"


@pytest.mark.parametrize("change", [unsaved, tagged, undated, nameless])
def test_what_is_no_release_is_refused_before_anything_is_built(checkout, change):
    message = change(checkout)
    tags = run(checkout, "git", "tag").stdout
    ended = run(checkout, "scripts/release")
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"switchyard: {message}")
    assert ended.stderr.count("\n") == 1
    assert run(checkout, "git", "tag").stdout == tags
    assert not (checkout / "dist").exists()
