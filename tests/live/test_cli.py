"""The commands that ask a running server."""

import json

import pytest

from tests.faults.conftest import SCRIPTED
from tests.live.conftest import run_command


@pytest.mark.parametrize("kind", ["unix", "any address"])
def test_bench_and_drain_find_the_server_by_its_settings(start, tmp_path, kind):
    path = f"unix:{tmp_path}/socket"
    server = start(SCRIPTED, **({"bind": path} if kind == "unix" else {}))
    bind = path if kind == "unix" else f"0.0.0.0:{server.port}"
    server.wait_to_say("Try: ")
    done = run_command("bench", "--streams", "2", "--tokens", "4", "--json", SWITCHYARD_BIND=bind)
    [row] = json.loads(done.stdout)
    assert (done.returncode, row["errors"], row["streams"]) == (0, 0, 2)
    done = run_command("drain", SWITCHYARD_BIND=bind)
    assert done.returncode == 0 and "is draining" in done.stdout, done
    assert server.process.wait(30) == 0


def test_a_refusal_is_told_with_the_servers_words(server):
    done = run_command("drain", "--url", f"{server.url}/elsewhere")
    assert done.returncode == 1 and "404: " in done.stderr
    assert server.process.poll() is None


@pytest.mark.parametrize(
    ("arguments", "bind", "says"),
    [
        (["drain", "--url", "127.0.0.1:1"], "127.0.0.1:1", "must be http://HOST:PORT"),
        (["bench", "--url", "ftp://x"], "127.0.0.1:1", "must be http://HOST:PORT"),
        (["drain"], "fd://3", "give its --url"),
        (["drain"], "nonsense", "SWITCHYARD_BIND in the environment"),
    ],
)
def test_what_is_no_address_is_wrong_usage(arguments, bind, says):
    done = run_command(*arguments, SWITCHYARD_BIND=bind)
    assert done.returncode == 2 and says in done.stderr
