"""A real gunicorn, in its own process, on a free port."""

import atexit
import contextlib
import itertools
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time

import pytest
import requests

from tests.conftest import wait_for
from tests.live.warm import WARM

ROOT = pathlib.Path(__file__).parent.parent.parent
LINK = os.environ.get("TESTS_LINK", "auto")  # of servers whose test doesn't say
GUNICORN = [sys.executable, "-m", "gunicorn", "-c", str(ROOT / "gunicorn.conf.py")]
FLASK = [sys.executable, "-m", "flask", "--app", "wsgi", "run", "--port", "{port}"]
WAITRESS = [sys.executable, "-m", "waitress", "--listen", "127.0.0.1:{port}", "--threads", "8"]
WAITRESS += ["wsgi:app"]


_places = []  # sockets, so that no other test and no connection gets the ports meanwhile


def free_port():
    """One that stays this process's until it ends; a server that sets SO_REUSEADDR may listen."""
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.bind(("127.0.0.1", 0))
    _places.append(place)
    return place.getsockname()[1]


atexit.register(lambda: [place.close() for place in _places])


class Server:
    """`command` with settings in its environment; `output` is what it has printed. With `is_warm`
    it may be a fork of WARM.
    """

    def __init__(self, command, directory, port=None, cwd=None, is_warm=True, **settings):
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._begun = []  # answers, and iterators: one that is dropped closes its connection
        self._log = directory / f"server-{self.port}.log"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SWITCHYARD_")}
        settings = {"bind": f"127.0.0.1:{self.port}", "link": LINK, **settings}
        environment.update({f"SWITCHYARD_{k.upper()}": str(v) for k, v in settings.items()})
        environment["PYTHONPATH"] = str(ROOT)
        command = [part.format(port=self.port) for part in command]
        with self._log.open("wb") as log:
            if is_warm and WARM.can_run(command):
                self.process = WARM.run(command, cwd or directory, environment, log)
            else:
                self.process = subprocess.Popen(
                    command, cwd=cwd or directory, env=environment, stdout=log, stderr=log
                )

    @property
    def output(self):
        return self._log.read_text()

    def wait_until_ready(self, timeout=120):
        return self.wait_until_answers("/health/ready", timeout)

    def wait_until_answers(self, path, timeout=120):
        """With a 200."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(requests.ConnectionError, requests.Timeout):
                if requests.get(f"{self.url}{path}", timeout=10).status_code == 200:
                    return self
            time.sleep(0.01)
        pytest.fail(f"the server did not become ready:\n{self.output}")

    def wait_for(self, what, seconds=60):
        return wait_for(what, seconds, lambda: self.output)

    def wait_to_say(self, text):
        """Until it has printed that; it must not end before."""
        self.wait_for(lambda: text in self.output or self.process.poll() is not None)
        assert text in self.output, self.output

    def get(self, path, **more):
        return requests.get(f"{self.url}{path}", **{"timeout": 60, **more})

    def post(self, path, body, **more):
        return requests.post(f"{self.url}{path}", json=body, timeout=120, **more)

    def rows(self):
        """The requests that it has."""
        return self.get("/v1/requests").json()["data"]

    def begin(self, path="/v1/completions", **body):
        """The data of each event of a stream whose first has come."""
        body = {"stream": True, **({} if "messages" in body else {"prompt": "x"}), **body}
        answer = self.post(path, body, stream=True)
        data = (line[6:] for line in answer.iter_lines() if line.startswith(b"data: "))
        self._begun.append((answer, data))
        return itertools.chain([next(data)], data)

    def leave(self):
        """Read no further what has begun."""
        for answer, _ in self._begun:
            answer.close()

    def stop(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)


@pytest.fixture
def start(tmp_path, model_path):
    """Start a server that the test alone uses; it is stopped in the end."""
    servers = []

    def make(command=GUNICORN, **settings):
        servers.append(Server(command, tmp_path, **{"model": model_path, **settings}))
        return servers[-1]

    yield make
    for server in servers:
        server.leave()
        server.stop()


def shared_server(command=GUNICORN, scope="module", **settings):
    """A fixture: a server for all tests of a module, which leave it as it was."""

    @pytest.fixture(scope=scope)
    def server(request, tmp_path_factory):
        model = settings.get("model") or request.getfixturevalue("model_path")
        server = Server(command, tmp_path_factory.mktemp("server"), **settings | {"model": model})
        yield server.wait_until_ready()
        assert server.stop() == 0, server.output

    return server


server = shared_server(scope="session", max_batch_size=64)  # its model is called `tiny`


def unpack(root, *packages):
    """Debian's packages into a directory; skips where there are none."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("the programs come from Debian's packages, and this is no Debian")
    command = ["apt-get", "download", *packages]
    fetched = subprocess.run(command, cwd=root, capture_output=True, text=True)
    files = list(root.glob("*.deb"))
    if len(files) != len(packages):
        pytest.skip(f"Debian's packages can't be downloaded: {fetched.stderr}")
    for file in files:
        subprocess.run(["dpkg-deb", "-x", file, root], check=True)
    return root


@pytest.fixture
def checkout(tmp_path):
    """What is in a repository, as far as the scripts look at it, and an environment."""
    path = tmp_path / "checkout"
    for part in ("scripts", "engine", "models/demo"):
        shutil.copytree(ROOT / part, path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "switchyard" / "server", path / "switchyard" / "server")
    for name in ("errors.py", "files.py"):
        shutil.copy(ROOT / "switchyard" / name, path / "switchyard")
    for part in ("engine", "models"):
        (path / "switchyard" / part).symlink_to(f"../{part}")
    (path / "requirements.txt").write_text("")
    for name in ("cuda", "cuda-source", "exl3", "cluster"):
        shutil.copy(ROOT / f"requirements-{name}.txt", path)
    return path


def run_command(*arguments, **environment):
    """`python -m switchyard`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SWITCHYARD_")}
    command = [sys.executable, "-m", "switchyard", *arguments]
    more = {"capture_output": True, "text": True, "timeout": 120}
    return subprocess.run(command, cwd=ROOT, env={**kept, **environment}, **more)


def run_script(checkout, *arguments, script="serve", cwd=None, **more):
    environment = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "", **more}
    return subprocess.run(
        [str(checkout / "scripts" / script), *arguments],
        cwd=cwd or checkout,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,  # pip's, on a busy machine
    )


@pytest.fixture
def client(server):
    """The `openai` client, which validates strictly what it gets."""
    import openai  # not for tests without it

    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


@pytest.fixture
def environment(checkout):
    """As bootstrap makes it, but in less time: pip is a link."""
    venv = checkout / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    [site] = venv.glob("lib/python*/site-packages")
    # Not by an import, behind which setuptools leaves distutils to Python, and its warning to us.
    (site / "pip").symlink_to(pathlib.Path(sysconfig.get_path("purelib"), "pip"))
    (venv / ".place").write_text(f"{checkout}\n")
