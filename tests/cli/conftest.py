"""The command in an empty directory."""

import pytest
from click.testing import CliRunner

from switchyard.cli import main


@pytest.fixture
def switchyard(tmp_path, monkeypatch):
    """Run it in an empty directory, with no settings of this one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWITCHYARD_BIND", "127.0.0.1:0")
    return lambda *arguments: CliRunner().invoke(main, arguments)
