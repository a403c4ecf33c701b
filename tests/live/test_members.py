"""A real server whose engines are told by a file; and by a real name server."""

import concurrent.futures
import subprocess
import sys
import threading
import time
from functools import partial

import pytest

from switchyard.engine.config import ModelConfig
from switchyard.engine.links.hosts.host import Host
from switchyard.engine.links.thread import EngineThread
from switchyard.engine.model.model_dir import ModelDir
from tests.live.conftest import GUNICORN, ROOT, Server
from tests.live.test_serving import streamed_text
from tests.scripted import ScriptedBackend, count

TOKENS = 40


def paced(job):
    """At the pace of a small model."""
    for event in count(job):
        time.sleep(0.005)
        yield event


def start_engine(model_path, at):
    config = ModelConfig(model_path, "m", "cpu", max_batch_size=2)
    over_thread = partial(EngineThread, config, lambda: ScriptedBackend(paced))
    host = Host(config, over_thread, at, b"", ModelDir.read(model_path).fingerprint)
    host.start()
    return host


def ask(server, is_over):
    """Streams, one after the other. Returns their texts."""
    texts = []
    while not is_over.is_set():
        texts.append(streamed_text(server, {"max_tokens": TOKENS, "ignore_eos": True}))
    return texts


def unready(server):
    """Why the model is not ready."""
    answer = server.get("/health/ready")
    assert answer.status_code == 503
    return answer.json()["reasons"]["tiny"]


def states_of(server):
    [model] = server.get("/v1/models").json()["data"]
    return {one["at"]: one["state"] for one in model["meta"]["replicas"]}


def test_engines_are_replaced_one_by_one_and_no_answer_is_lost(tmp_path, model_path):
    source = tmp_path / "engines"
    names = [f"unix:{tmp_path}/{i}.sock" for i in range(6)]
    hosts = {at: start_engine(model_path, at) for at in names[:3]}

    def name(*at):
        fresh = tmp_path / "fresh"
        fresh.write_text("\n".join(at))
        fresh.rename(source)

    settings = {"model": model_path, "link": "socket", "at": f'["file:{source}"]'}
    server = Server(GUNICORN, tmp_path, max_batch_size=2, **settings)
    is_over = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        try:
            server.wait_until_answers("/health/live")
            server.wait_for(lambda: str(source) in unready(server))
            name(*names[:3])
            server.wait_until_ready()
            clients = [pool.submit(ask, server, is_over) for _ in range(3)]
            for i in range(3):
                hosts[names[3 + i]] = start_engine(model_path, names[3 + i])
                name(*names[1 + i : 4 + i])
                server.wait_for(lambda i=i: names[i] not in states_of(server))
                assert hosts.pop(names[i]).close(drain=20, timeout=20)
            is_over.set()
            texts = [text for client in clients for text in client.result(60)]
        finally:
            is_over.set()
            status = server.stop()
            for host in hosts.values():
                assert host.close(timeout=20)
    assert status == 0, server.output
    assert set(texts) == {"".join(f"{i} " for i in range(TOKENS))} and len(texts) > 10


LOOKUPS = """
from switchyard.engine.links.hosts.members import Members
from tests.nodes.name_server import NameServer
server = NameServer("127.0.0.9")
server.records = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
members = Members(["dns:engines.test.:7000"], lambda at: None)
print(*sorted(members.follow()))
server.records = ["10.0.0.1", "10.0.0.3"]
members.follow()
print(*sorted(members.follow()))
server.records = []
print(members.follow(), members.fault)
server.close()
"""


def test_a_name_server_tells_who_is_there(tmp_path):
    """In a namespace whose resolver is a small server of this test."""
    resolver = tmp_path / "resolv.conf"
    resolver.write_text("nameserver 127.0.0.9\noptions timeout:5\n")
    bind = f"mount --bind {resolver} /etc/resolv.conf && exec {sys.executable} -c '{LOOKUPS}'"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", bind], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    if done.returncode and ("unshare" in done.stderr or "mount" in done.stderr):
        pytest.skip(f"no mount namespaces here: {done.stderr.strip()}")
    first, second, third = done.stdout.splitlines()
    assert first == "10.0.0.1:7000 10.0.0.2:7000 10.0.0.3:7000"
    assert second == "10.0.0.1:7000 10.0.0.3:7000"
    assert third.startswith("None dns:engines.test.:7000: ")
