"""schemathesis with a key of each role: what is answered is as the document says, and no fault."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.live.conftest import GUNICORN, Server
from tests.operations.conftest import KEYS, KeysFile, entry

CHECKS = "not_a_server_error,status_code_conformance,response_schema_conformance"


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_path):
    directory = tmp_path_factory.mktemp("server")
    path = KeysFile(directory / "keys.toml").write(*map(entry, KEYS)).path
    server = Server(
        GUNICORN, directory, model=model_path, keys_file=path, default_max_tokens=16
    ).wait_until_ready()
    yield server
    assert server.stop() == 0, server.output


@pytest.mark.parametrize("name", [None, "ann", "prom", "root"])
def test_schemathesis_finds_no_fault(server, tmp_path, name):
    key = [] if name is None else ["--header", f"Authorization: Bearer {KEYS[name]}"]
    command = [
        str(pathlib.Path(sys.executable).parent / "schemathesis"),
        "run",
        f"{server.url}/openapi.json",
        *("--exclude-path-regex", "/admin/drain$"),  # ends the server
        *("--phases", "fuzzing", "--max-examples", "2", "--checks", CHECKS),
        *("--request-timeout", "60", "--seed", "1", "--no-shrink", "--no-color", *key),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SCHEMATHESIS_HOOKS": "tests.live.contract_hooks",
    }
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert int(re.search(r"(\d+) generated", run.stdout)[1]) > 57  # routes
