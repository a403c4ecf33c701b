"""A server and an engine of two versions, of which the later has one sampler more."""

import shutil
import sys

import pytest

from tests.live.conftest import GUNICORN, ROOT, Server

pytestmark = pytest.mark.nodes

ADDITIONS = {  # to a file, before a line
    "engine/sampling.py": (
        "    skew: float = _parameter(\n",
        '    novel: float = _parameter(0.0, "filter row", "Of a later version.", ge=0, le=1)\n',
    ),
    "app/request/sampling.py": (
        '    skew: float = _parameter("skew")\n',
        '    novel: float = _parameter("novel")\n',
    ),
}
BODY = {"prompt": "one two three", "max_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def later(tmp_path_factory):
    """A checkout of the later version."""
    path = tmp_path_factory.mktemp("later")
    for part in ("app", "engine", "switchyard"):
        shutil.copytree(ROOT / part, path / part, symlinks=True)
    for part in ("gunicorn.conf.py", "wsgi.py"):
        shutil.copy(ROOT / part, path)
    (path / "models").symlink_to(ROOT / "models")
    for name, (line, more) in ADDITIONS.items():
        text = (path / name).read_text()
        assert text.count(line) == 1
        (path / name).write_text(text.replace(line, more + line))
    return path


@pytest.mark.parametrize("which", ["server", "engine"])
def test_one_of_them_may_be_later(later, which, tmp_path, model_path):
    at = f"unix:{tmp_path}/engine.sock"
    commands = {
        "engine": [sys.executable, "-m", "switchyard", "engine", "--at", at],
        "server": [*GUNICORN[:-1], "gunicorn.conf.py"],
    }
    settings = {"engine": {"link": "auto"}, "server": {"link": "socket", "at": at}}
    ends = {
        name: Server(
            commands[name],
            tmp_path,
            cwd=later if name == which else ROOT,
            is_warm=name != which,
            model=model_path,
            **settings[name],
        )
        for name in commands
    }
    try:
        server = ends["server"].wait_until_ready()
        answers = [server.post("/v1/completions", BODY) for _ in range(2)]
        asked = server.post("/v1/completions", {**BODY, "novel": 0.5})
        answers.append(server.post("/v1/completions", BODY))
    finally:
        statuses = [one.stop() for one in ends.values()]
    assert statuses == [0, 0], [one.output for one in ends.values()]
    assert [one.status_code for one in answers] == [200] * 3
    assert len({one.json()["choices"][0]["text"] for one in answers}) == 1
    assert asked.status_code == 400 and "novel" in asked.json()["error"]["message"]
    if which == "server":
        assert "the engine is of an earlier version" in asked.json()["error"]["message"]
