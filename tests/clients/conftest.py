"""A server with the demo model, and programs in the environment that scripts/test-clients makes."""

import os
import subprocess

import pytest

from tests.conftest import DEMO, ROOT
from tests.live.conftest import shared_server

PYTHON = ROOT / ".venv" / "clients" / "bin" / "python"
TOKENIZER = "switchyard/demo"  # as it is called on the hub that `run` makes believe


server = shared_server(scope="session", model=DEMO)


@pytest.fixture(scope="session")
def hub(tmp_path_factory):
    """A directory as Hugging Face's libraries keep what they have downloaded: the demo model alone.
    aiperf takes no path to a tokenizer where there is no network.
    """
    home = tmp_path_factory.mktemp("hub")
    model = home / "hub" / f"models--{TOKENIZER.replace('/', '--')}"
    commit = "0" * 40
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(commit)
    (model / "snapshots").mkdir()
    (model / "snapshots" / commit).symlink_to(DEMO)
    return home


@pytest.fixture(scope="session")
def run(tmp_path_factory, hub):
    """Run Python with these arguments, without a hub, in its own directory, which is returned
    with what is printed.
    """

    def run_python(*arguments):
        directory = tmp_path_factory.mktemp("run")
        offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(hub), "HOME": str(directory)}
        offline["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
        offline["TMPDIR"] = str(directory)  # aiperf leaves files there
        done = subprocess.run(
            [PYTHON, *arguments],
            cwd=directory,
            env={**os.environ, **offline},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return directory, done.stdout

    return run_python
