"""The commands that ask a running server."""

import json
import os
import subprocess
import sys

import pytest

from tests.faults.conftest import SCRIPTED
from tests.live.conftest import ROOT


def run(*arguments, **settings):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SWITCHYARD_")}
    environment |= {f"SWITCHYARD_{k.upper()}": v for k, v in settings.items()}
    command = [sys.executable, "-m", "switchyard", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("kind", ["unix", "any address"])
def test_bench_and_drain_find_the_server_by_its_settings(start, tmp_path, kind):
    path = f"unix:{tmp_path}/socket"
    server = start(SCRIPTED, **({"bind": path} if kind == "unix" else {}))
    bind = path if kind == "unix" else f"0.0.0.0:{server.port}"
    server.wait_to_say("Try: ")
    done = run("bench", "--streams", "2", "--tokens", "4", "--json", bind=bind)
    [row] = json.loads(done.stdout)
    assert (done.returncode, row["errors"], row["streams"]) == (0, 0, 2)
    done = run("drain", bind=bind)
    assert done.returncode == 0 and "is draining" in done.stdout, done
    assert server.process.wait(30) == 0


def test_a_refusal_is_told_with_the_servers_words(server):
    done = run("drain", "--url", f"{server.url}/elsewhere")
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
    done = run(*arguments, bind=bind)
    assert done.returncode == 2 and says in done.stderr
