"""schemathesis with a key of each role: what is answered is as the document says, and no fault."""

import pytest

from tests.live.conftest import GUNICORN, Server
from tests.live.schemathesis import num_tried
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


@pytest.mark.parametrize(
    "name",
    ["ann", "root", *(pytest.param(one, marks=pytest.mark.hardship) for one in (None, "prom"))],
)
def test_schemathesis_finds_no_fault(server, tmp_path, name):
    key = [] if name is None else ["--header", f"Authorization: Bearer {KEYS[name]}"]
    few = ("--phases", "fuzzing", "--max-examples", "2", "--checks", CHECKS)
    assert num_tried(server, tmp_path, *few, *key) > 57  # routes
