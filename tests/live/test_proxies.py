"""nginx and HAProxy, Debian's, in front: whose share is whose."""

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

pytestmark = pytest.mark.hardship  # it downloads packages

PACKAGES = ("nginx", "haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1")
CROWD = 12  # requests that one client has waiting
NGINX = """\
daemon off; pid {root}/nginx.pid; error_log {root}/nginx.log;
events {{}}
http {{
  access_log off; client_body_temp_path {root}/body; proxy_temp_path {root}/proxy;
  fastcgi_temp_path {root}/f; uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://127.0.0.1:{server};
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
  default_backend switchyard
backend switchyard
  server one 127.0.0.1:{server}
"""
COMMANDS = {
    "nginx": (NGINX, ["usr/sbin/nginx", "-p", ".", "-c"]),
    "haproxy": (HAPROXY, ["usr/sbin/haproxy", "-f"]),
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
def in_front(programs, name, server):
    """The URL of a proxy in front of a server."""
    text, command = COMMANDS[name]
    port = free_port()
    config = programs / f"{name}-{port}.conf"
    config.write_text(text.format(root=programs, port=port, server=server.port))
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


def ask(url, address, ended, who, forged):
    session = requests.Session()
    session.mount("http://", From(address))
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
