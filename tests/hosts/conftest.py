"""A Switchyard server, and host applications under the servers that a shop may have."""

import os
import pathlib
import shlex
import shutil
import signal

import pytest
import requests

from tests.conftest import DEMO, ROOT
from tests.live.conftest import Server, free_port, shared_server

BINS = f"{ROOT}/.venv/hosts/bin{os.pathsep}{ROOT}/.venv/bin"
HERE = pathlib.Path(__file__).parent
ENDLESS = {"prompt": "Once", "max_tokens": 1900, "ignore_eos": True}

# As docs/flask.md has them, except for the address, and mod_wsgi's directory and user.
COMMANDS = {
    "gthread": "gunicorn --threads 16 --bind {address} host:app",
    "gthread, 4 workers": "gunicorn --workers 4 --threads 8 --bind {address} host:app",
    "sync, 1 worker": "gunicorn --bind {address} host:app",
    "sync": "gunicorn --workers 4 --bind {address} host:app",
    "waitress": (
        "waitress-serve --threads 16 --channel-request-lookahead 1 --listen {address} host:app"
    ),
    "uwsgi": (
        "uwsgi --http-socket {address} --master --die-on-term --processes 4 --threads 8"
        " --module host:app"
    ),
    "uwsgi, 1 process": (
        "uwsgi --http-socket {address} --master --die-on-term --lazy-apps --threads 16"
        " --module host:app"
    ),
    "mod_wsgi": (
        "mod_wsgi-express start-server --host 127.0.0.1 --port {port} --processes 4 --threads 8"
        " --server-root httpd --user nobody --group nogroup host.wsgi"
    ),
    "flask run": "flask --app host run --debug --port {port}",
}

measured = []


def pytest_terminal_summary(terminalreporter):
    for line in measured:
        terminalreporter.write_line(line)


def program(name):
    """Its path; skips where it is not installed."""
    path = shutil.which(name, path=BINS)
    if path is None:
        pytest.skip(f"{name} is not installed: see scripts/test-hosts")
    return path


def command_of(name):
    what, *more = shlex.split(COMMANDS[name])
    return [program(what), *more]


class Host(Server):
    """A host application, and what it leaves to the server at `switchyard`, if anything."""

    def __init__(self, command, directory, switchyard, **settings):
        port = free_port()
        self.directory = directory
        self.is_remote = switchyard is not None
        self._api = switchyard.url if switchyard else f"http://127.0.0.1:{port}/llm"
        if switchyard:
            settings["url"] = switchyard.url
        else:
            settings["model"] = DEMO
        command = [part.replace("{address}", f"127.0.0.1:{port}") for part in command]
        super().__init__(command, directory, port, **settings)

    def jobs(self):
        return requests.get(f"{self._api}/v1/requests", timeout=30).json()["data"]

    def num_cancelled(self):
        text = requests.get(f"{self._api}/metrics", timeout=30).text
        lines = [line for line in text.splitlines() if 'finished_reason="abort"' in line]
        return sum(float(line.split()[-1]) for line in lines if "request_success_total" in line)

    def processes(self):
        """Its process and children, the youngest first."""
        found = [self.process.pid]
        for pid in found:
            for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
                found += map(int, path.read_text().split())
        return found[::-1]

    def end(self):
        processes = self.processes()
        program = pathlib.Path(self.process.args[0]).name
        if program == "flask":  # whose reloader leaves its child behind
            os.kill(processes[0], signal.SIGTERM)
        elif self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        return [pid for pid in processes if pathlib.Path(f"/proc/{pid}").exists()]


switchyard = shared_server(scope="session", model=DEMO)


def make_directory(path):
    for name in ("host.py", "tasks.py"):
        shutil.copy(HERE / name, path)
    (path / "host.wsgi").write_text("from host import app as application\n")
    return path


@pytest.fixture
def start(tmp_path, switchyard):
    """Start a host by the name of its command; it is stopped in the end."""
    hosts = []
    directory = make_directory(tmp_path)

    def start(name, is_remote, **settings):
        host = Host(command_of(name), directory, switchyard if is_remote else None, **settings)
        hosts.append(host)
        return host.wait_until_answers("/")

    yield start
    for host in hosts:
        left = host.end()
        assert left == [], host.output
