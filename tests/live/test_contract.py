"""schemathesis on /openapi.json: what the document says and what the server does agree."""

import os
import pathlib
import re
import subprocess
import sys

from tests.conftest import DEMO, ROOT


def test_schemathesis_finds_nothing(start, tmp_path):
    """With few examples, drawn at random; scripts/contract tries many, and all borders."""
    server = start(model=DEMO, default_max_tokens=16).wait_until_ready()
    command = [
        str(pathlib.Path(sys.executable).parent / "schemathesis"),
        "run",
        f"{server.url}/openapi.json",
        *("--exclude-path-regex", "/admin/drain$"),  # ends the server
        *("--phases", "fuzzing,stateful", "--max-examples", "8"),
        *("--request-timeout", "60"),
        *("--seed", "1", "--no-shrink", "--no-color"),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SCHEMATHESIS_HOOKS": "tests.live.contract_hooks",
    }
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert int(re.search(r"(\d+) generated", run.stdout)[1]) > 200
