"""nginx, HAProxy and Caddy, Debian's, with the files of deploy/proxy, in front of real servers."""

import concurrent.futures
import contextlib
import itertools
import json
import os
import re
import subprocess
import threading
from types import SimpleNamespace

import pytest
import requests
import websocket
from requests.adapters import HTTPAdapter

from tests.conftest import wait_for
from tests.faults.conftest import SCRIPTED, open_request
from tests.faults.paced import HANG, PAUSE
from tests.live.conftest import ROOT, free_port, unpack
from tests.live.test_shared_engine import Shared
from tests.operations.conftest import KeysFile, bearer, entry

pytestmark = pytest.mark.hardship  # it downloads packages

PACKAGES = (
    *("nginx", "haproxy", "caddy"),
    *("liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1"),
)
CROWD = 12  # requests that one client has waiting
FILES = ROOT / "deploy" / "proxy"
NGINX = """\
user root; daemon off; pid {root}/nginx.pid; error_log {root}/nginx.log;
events {{}}
http {{
  access_log off; client_body_temp_path {root}/body; proxy_temp_path {root}/proxy;
  fastcgi_temp_path {root}/f; uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;
  {file}
}}
"""


def of_nginx(text, root, port, servers):
    lines = "".join(f"server 127.0.0.1:{server.port};" for server in servers)
    text = replaced(text, "listen 443 ssl http2;", f"listen 127.0.0.1:{port};")
    text = re.sub("ssl_certificate.*;", "", text)
    return NGINX.format(root=root, file=replaced(text, "server 127.0.0.1:8000;", lines))


def of_haproxy(text, root, port, servers):
    check = " check" if len(servers) > 1 else ""
    lines = "\n".join(f"    server s{one.port} 127.0.0.1:{one.port}{check}" for one in servers)
    tls = "bind :443 ssl crt /etc/haproxy/llm.example.org.pem alpn h2,http/1.1"
    text = replaced(text, tls, f"bind 127.0.0.1:{port}")
    return replaced(text, "    server s1 127.0.0.1:8000", lines)


def of_caddy(text, root, port, servers):
    text = replaced(text, "llm.example.org {", f"http://127.0.0.1:{port} {{\nbind 127.0.0.1")
    upstreams = " ".join(f"127.0.0.1:{server.port}" for server in servers)
    text = replaced(text, "reverse_proxy 127.0.0.1:8000", f"reverse_proxy {upstreams}")
    return "{\nadmin off\n}\n" + text


def replaced(text, old, new):
    assert text.count(old) == 1, old
    return text.replace(old, new)


CADDY = ["usr/bin/caddy", "run", "--adapter", "caddyfile", "--config"]
COMMANDS = {
    "nginx": (of_nginx, "nginx.conf", ["usr/sbin/nginx", "-p", ".", "-c"]),
    "haproxy": (of_haproxy, "haproxy.cfg", ["usr/sbin/haproxy", "-f"]),
    "caddy": (of_caddy, "Caddyfile", CADDY),
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The directory that has them."""
    return unpack(tmp_path_factory.mktemp("proxies"), *PACKAGES)


@contextlib.contextmanager
def in_front(programs, name, *servers):
    """The URL of a proxy in front of servers."""
    adapt, file, command = COMMANDS[name]
    port = free_port()
    config = programs / f"{name}-{port}.conf"
    config.write_text(adapt((FILES / file).read_text(), programs, port, servers))
    libraries = ":".join(str(path) for path in programs.glob("usr/lib/*-linux-gnu"))
    command = [programs / command[0], *command[1:], config]
    environment = os.environ | {"LD_LIBRARY_PATH": libraries, "HOME": str(programs)}
    process = subprocess.Popen(command, cwd=programs, env=environment)
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


@pytest.fixture(params=COMMANDS)
def front(request, programs):
    return lambda *servers: in_front(programs, request.param, *servers)


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
    with concurrent.futures.ThreadPoolExecutor(CROWD) as pool:
        arguments = url, "127.0.0.2", ended, "first", ""
        first = [pool.submit(ask, *arguments) for _ in range(CROWD)]
        wait_for(lambda: waiting(url) >= CROWD - 1)
        ask(url, "127.0.0.3", ended, "second", forged)
        assert [one.result() for one in first] == [None] * CROWD
    return sum(1 for _ in itertools.takewhile(lambda who: who == "first", ended))


def waiting(url):
    """Requests that the server has, active or not."""
    models = requests.get(f"{url}/v1/status", timeout=20).json()["models"]
    return sum(model["running"] + model["waiting"] for model in models)


@pytest.mark.parametrize("forged", ["", "203.0.113.9"])
def test_each_address_behind_a_trusted_proxy_has_its_own_share(start, front, forged):
    server = start(max_batch_size=1, trusted_proxies="127.0.0.1").wait_until_ready()
    with front(server) as url:
        assert place_of_the_second(url, forged) <= 3


def test_a_forged_address_behind_a_proxy_that_is_not_trusted_changes_nothing(start, front):
    server = start(max_batch_size=1).wait_until_ready()
    with front(server) as url:
        assert place_of_the_second(url, "203.0.113.9") == CROWD


ADDRESSES = [f"127.0.0.{i}" for i in range(2, 14)]


def test_behind_one_that_hashes_by_client_two_servers_are_as_one(tmp_path, model_path, front):
    """What a server alone knows is found again, and the limits are those of the engine."""
    common = {"trusted_proxies": "127.0.0.1", "resume_timeout": 60, "access_log": "-"}
    with Shared(tmp_path, model_path, max_batch_size=1, max_pending=11, **common) as shared:
        for server in shared.servers:
            server.wait_until_ready()
        with front(*shared.servers) as url:
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
    """The places of two requests of each address, all at once."""
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


COMPLETIONS = "/v1/completions"
LONG = {"max_tokens": 1500, "seed": PAUSE}  # 30 seconds
ENDLESS = {"prompt": "x", "max_tokens": 100_000}


@pytest.fixture
def scripted(start):
    """A server whose model has a token of each job every 10 ms."""
    return lambda **more: start(SCRIPTED, trusted_proxies="127.0.0.1", grace=1, **more)


def stream(url, **body):
    body = {**ENDLESS, "stream": True, **body}
    return requests.post(f"{url}{COMPLETIONS}", json=body, stream=True, timeout=20)


def events(response):
    """What comes, each as soon as its bytes are there."""
    for line in response.iter_lines(chunk_size=None, delimiter=b"\n\n"):
        if line.startswith(b"data: "):
            yield line.removeprefix(b"data: ")


def test_a_stream_comes_as_it_is_written(scripted, front):
    """What a step that doesn't return has behind it is here, though no more will come."""
    server = scripted(hang_timeout=600, hang_exit=600).wait_until_ready()
    with front(server) as url, stream(url, seed=HANG) as response:
        told = events(response)
        while "1" not in json.loads(next(told))["choices"][0]["text"]:
            pass


def test_a_stream_of_half_a_minute_comes_whole_in_many_pieces(scripted, front):
    server = scripted().wait_until_ready()
    with front(server) as url, stream(url, **LONG) as response:
        pieces = list(response.raw.stream(65536))
    text = b"".join(pieces).decode()
    *told, end = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    numbers = "".join(json.loads(one)["choices"][0]["text"] for one in told if "choices" in one)
    assert numbers.split() == [str(i) for i in range(LONG["max_tokens"])]
    assert end == "[DONE]"
    assert len(pieces) > LONG["max_tokens"] / 2


@pytest.mark.parametrize("is_streamed", [True, False])
def test_whoever_leaves_has_its_request_cancelled(scripted, front, is_streamed):
    server = scripted().wait_until_ready()
    with front(server) as url:
        proxy = SimpleNamespace(port=int(url.rpartition(":")[2]))
        connection = open_request(proxy, {**ENDLESS, "stream": is_streamed})
        if is_streamed:
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        wait_for(lambda: waiting(server.url) == 1, 10)
        connection.close()
        wait_for(lambda: waiting(server.url) == 0, 10)
        wait_for(lambda: clients_gone(server.url) == 1, 10)


def clients_gone(url):
    text = requests.get(f"{url}/metrics", timeout=20).text
    return sum(float(n) for n in re.findall(r"(?m)^switchyard_clients_gone_total.* (\S+)$", text))


def test_keys_waits_and_refusals_come_through(scripted, front, tmp_path):
    keys = KeysFile(tmp_path / "keys.toml").write(entry("ann", rpm=1), entry("root"))
    server = scripted(keys_file=keys.path, max_body_bytes=2_000_000).wait_until_ready()
    with front(server) as url:

        def ask(prompt="x", path=COMPLETIONS, who="ann"):
            body = {"prompt": prompt, "max_tokens": 1}
            return requests.post(f"{url}{path}", json=body, headers=bearer(who), timeout=60)

        assert [ask().status_code for _ in range(2)] == [200, 429]
        refusal = ask()
        assert 0 < int(refusal.headers["Retry-After"]) <= 60 and "retry-after-ms" in refusal.headers
        assert refusal.json()["error"]["code"] == "rate_limit_exceeded"
        assert ask(who="nobody").status_code == 401
        too_long = ask("x" * 3_000_000, who="root")
        assert too_long.status_code == 413 and "2000000" in too_long.text
        assert "unknown_url" not in ask("x" * 1_500_000, who="root").text  # more than nginx's 1 MB
        for path in ("/admin/drain", "/metrics"):
            hidden = ask(path=path, who="root")
            assert hidden.status_code == 404 and "error" not in hidden.text[:20]


def test_a_websocket_comes_through(scripted, front):
    server = scripted().wait_until_ready()
    with front(server) as url:
        where = url.replace("http", "ws") + "/v1/stream"
        with contextlib.closing(websocket.create_connection(where, timeout=30, origin=url)) as ours:
            request = {"type": "generate", "id": "a", "prompt": "x", "max_tokens": 3}
            ours.send(json.dumps(request))
            types = []
            while "end" not in types:
                types.append(json.loads(ours.recv())["type"])
            assert "error" not in types
