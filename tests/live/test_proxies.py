"""nginx and HAProxy, Debian's, in front: whose share is whose, and which server is whose."""

import concurrent.futures
import contextlib
import itertools
import os
import shutil
import subprocess
import threading

import pytest
import requests
from requests.adapters import HTTPAdapter

from tests.live.conftest import free_port
from tests.live.test_shared_engine import Shared

pytestmark = pytest.mark.hardship  # it downloads packages

PACKAGES = ("nginx", "haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1")
CROWD = 12  # requests that one client has waiting
NGINX = """\
daemon off; pid {root}/nginx.pid; error_log {root}/nginx.log;
events {{}}
http {{
  access_log off; client_body_temp_path {root}/body; proxy_temp_path {root}/proxy;
  fastcgi_temp_path {root}/f; uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;
  upstream switchyard {{
    hash $http_authorization$http_x_api_key$remote_addr consistent;
    {servers}
  }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://switchyard;
      proxy_buffering off;
      proxy_set_header Host $host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    }}
  }}
}}
"""
HAPROXY = """\
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend all
  bind 127.0.0.1:{port}
  option forwardfor
  http-request set-var-fmt(txn.client) "%[req.fhdr(authorization)]%[req.fhdr(x-api-key)]%[src]"
  default_backend switchyard
backend switchyard
  balance hash var(txn.client)
  hash-type consistent
  {servers}
"""
COMMANDS = {
    "nginx": (NGINX, "server 127.0.0.1:{port};", ["usr/sbin/nginx", "-p", ".", "-c"]),
    "haproxy": (HAPROXY, "server s{port} 127.0.0.1:{port}", ["usr/sbin/haproxy", "-f"]),
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The directory that has them."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("the proxies come from Debian's packages, and this is no Debian")
    root = tmp_path_factory.mktemp("proxies")
    fetched = subprocess.run(
        ["apt-get", "download", *PACKAGES], cwd=root, capture_output=True, text=True
    )
    packages = list(root.glob("*.deb"))
    if len(packages) != len(PACKAGES):
        pytest.skip(f"Debian's packages can't be downloaded: {fetched.stderr}")
    for package in packages:
        subprocess.run(["dpkg-deb", "-x", package, root], check=True)
    return root


@contextlib.contextmanager
def in_front(programs, name, *servers):
    """The URL of a proxy in front of servers."""
    text, line, command = COMMANDS[name]
    lines = "\n    ".join(line.format(port=server.port) for server in servers)
    port = free_port()
    config = programs / f"{name}-{port}.conf"
    config.write_text(text.format(root=programs, port=port, servers=lines))
    libraries = ":".join(str(path) for path in programs.glob("usr/lib/*-linux-gnu"))
    process = subprocess.Popen(
        [programs / command[0], *command[1:], config],
        cwd=programs,
        env=os.environ | {"LD_LIBRARY_PATH": libraries},
    )
    try:
        url = f"http://127.0.0.1:{port}"
        session = requests.Session()
        retries = requests.packages.urllib3.Retry(connect=50, backoff_factor=0.05)
        session.mount("http://", HTTPAdapter(max_retries=retries))
        assert session.get(f"{url}/health/ready", timeout=20).status_code == 200
        yield url
    finally:
        process.terminate()
        process.wait(20)


class From(HTTPAdapter):
    """Connections from an address of this machine."""

    def __init__(self, address):
        self._address = address
        super().__init__()

    def init_poolmanager(self, *args, **more):
        super().init_poolmanager(*args, source_address=(self._address, 0), **more)


def session_from(address):
    session = requests.Session()
    session.mount("http://", From(address))
    return session


def ask(url, address, ended, who, forged):
    session = session_from(address)
    headers = {"X-Forwarded-For": forged} if forged else {}
    body = {"prompt": "Once", "max_tokens": 48, "temperature": 0, "ignore_eos": True}
    response = session.post(f"{url}/v1/completions", json=body, headers=headers, timeout=120)
    assert response.status_code == 200, response.text
    ended.append(who)


def place_of_the_second(url, forged=""):
    """How many of the first client's requests end before the one of a second client, which came
    behind all of them. `forged`: what the second says that it is.
    """
    ended = []
    first = [
        threading.Thread(target=ask, args=(url, "127.0.0.2", ended, "first", ""))
        for _ in range(CROWD)
    ]
    for thread in first:
        thread.start()
    while waiting(url) < CROWD - 1:
        pass
    ask(url, "127.0.0.3", ended, "second", forged)
    for thread in first:
        thread.join()
    return sum(1 for _ in itertools.takewhile(lambda who: who == "first", ended))


def waiting(url):
    """Requests that the server has, active or not."""
    models = requests.get(f"{url}/v1/status", timeout=20).json()["models"]
    return sum(model["running"] + model["waiting"] for model in models)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("forged", ["", "203.0.113.9"])
def test_each_address_behind_a_trusted_proxy_has_its_own_share(start, programs, name, forged):
    server = start(max_batch_size=1, trusted_proxies="127.0.0.1").wait_until_ready()
    with in_front(programs, name, server) as url:
        assert place_of_the_second(url, forged) <= 3


@pytest.mark.parametrize("name", COMMANDS)
def test_a_forged_address_behind_a_proxy_that_is_not_trusted_changes_nothing(start, programs, name):
    server = start(max_batch_size=1).wait_until_ready()
    with in_front(programs, name, server) as url:
        assert place_of_the_second(url, "203.0.113.9") == CROWD


ADDRESSES = [f"127.0.0.{i}" for i in range(2, 14)]


@pytest.mark.parametrize("name", COMMANDS)
def test_behind_one_that_hashes_by_client_two_servers_are_as_one(
    tmp_path, model_path, programs, name
):
    """What a server alone knows is found again, and the limits are those of the engine."""
    common = {"trusted_proxies": "127.0.0.1", "resume_timeout": 60, "access_log": "-"}
    with Shared(tmp_path, model_path, max_batch_size=1, max_pending=11, **common) as shared:
        for server in shared.servers:
            server.wait_until_ready()
        with in_front(programs, name, *shared.servers) as url:
            for address in ADDRESSES:
                again_and_taken_up(session_from(address), url, address)
            used = [server.output.count("POST /v1/completions") for server in shared.servers]
            assert min(used) >= 4
            assert places_taken(url) == 12


def again_and_taken_up(session, url, key):
    body = {"prompt": "Once", "max_tokens": 30, "temperature": 0, "ignore_eos": True}
    where, headers = f"{url}/v1/completions", {"Idempotency-Key": f"key of {key}"}
    answers = [session.post(where, json=body, headers=headers, timeout=60) for _ in range(2)]
    assert answers[0].json()["id"] == answers[1].json()["id"]

    with session.post(where, json={**body, "stream": True}, stream=True, timeout=60) as cut:
        lines = (line for line in cut.iter_lines() if line)
        last = next(line for line in lines if line.startswith(b"id: ")).removeprefix(b"id: ")
    rest = session.post(where, json={}, headers={"Last-Event-ID": last}, timeout=60)
    assert rest.status_code == 200 and rest.text.endswith("data: [DONE]\n\n")


def places_taken(url):
    """Of two requests of each address, all at once."""
    body = {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True}
    gate = threading.Barrier(2 * len(ADDRESSES))

    def ask_once(address):
        gate.wait(20)
        with session_from(address).post(
            f"{url}/v1/completions", json=body, stream=True, timeout=120
        ) as answer:
            refused.release() if answer.status_code == 429 else over.wait(60)
            return answer.status_code

    refused, over = threading.Semaphore(0), threading.Event()
    with concurrent.futures.ThreadPoolExecutor(2 * len(ADDRESSES)) as pool:
        asked = [pool.submit(ask_once, address) for address in ADDRESSES * 2]
        for _ in range(len(ADDRESSES)):
            assert refused.acquire(timeout=30)
        over.set()
        statuses = [one.result() for one in asked]
    assert set(statuses) == {200, 429}
    return statuses.count(200)
