"""Runs of schemathesis."""

import os
import pathlib
import re
import subprocess
import sys

from tests.conftest import ROOT


def num_tried(server, directory, *options):
    """How many requests it has made of /openapi.json, and found no fault."""
    command = [
        str(pathlib.Path(sys.executable).parent / "schemathesis"),
        "run",
        f"{server.url}/openapi.json",
        *(
            "--exclude-path-regex",
            "/admin/drain$|/v1/model/(un)?load$|/models/sse$",
        ),  # ends the server, or its model
        *("--request-timeout", "60", "--seed", "1", "--no-shrink", "--no-color", *options),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SCHEMATHESIS_HOOKS": "tests.live.contract_hooks",
    }
    run = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=900
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return int(re.search(r"(\d+) generated", run.stdout)[1])
