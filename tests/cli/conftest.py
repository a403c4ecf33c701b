"""The command in an empty directory, and servers for it."""

import os

import pytest
from click.testing import CliRunner

from switchyard.cli import main
from tests.app.client_mode.conftest import Upstream, listen, serve
from tests.app.conftest import make_client, way
from tests.operations.conftest import clock, keys_file, make_keyed
from tests.operations.ledgers import fill, follow, make_counted, path, wall

__all__ = ["clock", "fill", "follow", "keys_file", "listen", "make_client", "make_counted"]
__all__ += ["make_keyed", "path", "serve", "wall", "way"]


class Command:
    """The command, with these arguments before others."""

    def __init__(self, *first):
        self.first = first

    def __call__(self, *arguments, **more):
        return CliRunner().invoke(main, [*map(str, (*self.first, *arguments))], **more)

    def told(self, status, *arguments, **more):
        """What it says if it ends with that status."""
        done = self(*arguments, **more)
        assert done.exit_code == status, done.output
        return done.output


@pytest.fixture
def switchyard(tmp_path, monkeypatch):
    """In an empty directory, with no settings of this one."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SWITCHYARD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SWITCHYARD_BIND", "127.0.0.1:0")
    return Command()


class Answers(Upstream):
    """Answers with `status`, if any, and with what `bodies` has for a method and path, or else
    `body`.
    """

    def __init__(self, status, body):
        self.status, self.body, self.bodies = status, body, {}
        super().__init__()

    def answer_to(self, method, path):
        body = self.bodies.get((method, path.partition("?")[0]), self.body)
        return self.status, {}, body


@pytest.fixture
def answering(listen):
    return lambda status=200, body=b"": listen(Answers(status, body))
