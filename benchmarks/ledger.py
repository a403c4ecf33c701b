#!/usr/bin/env python3
"""Does the ledger say what the answers said, whatever ends in between?

    python benchmarks/ledger.py [--requests 20000]

Starts the server with ten keys and its own model, and sends it requests of 16 clients, half of them
streams. The engine's process is killed after a third and after two thirds of the requests. The
whole server is killed after half of them, and started again. Then three things must hold. Each
answer with its usage has a row with the same tokens, except answers of the last moment before the
server died. The sums of days are those of the rows. No counter of /metrics has fallen while a
server lived. Otherwise the exit status is 1.
"""

import argparse
import collections
import hashlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.report import header  # noqa: E402

NUM_KEYS, NUM_CLIENTS = 10, 16
LATE = 0.1  # seconds: the ledger writes each 0.05, and the answer travels to its client
KEYS = [f"sk-sy-ledger-{i}-0123456789abcdef" for i in range(NUM_KEYS)]
GROWING = re.compile(
    r"^(\S+(?:_total|_count|_sum|_bucket)\S*|process_resident_memory_bytes) (\S+)$", re.MULTILINE
)
RESIDENT = "process_resident_memory_bytes"


class Server:
    """A server that can be killed, and started again on the same port."""

    def __init__(self, directory, limits_of=lambda key: ""):
        self._directory = directory
        keys = pathlib.Path(directory, "keys.toml")
        keys.write_text("".join(entry(key, limits_of(key)) for key in KEYS))
        keys.chmod(0o600)
        with socket.create_server(("127.0.0.1", 0)) as place:
            self.port = place.getsockname()[1]
        self.start()

    def start(self):
        settings = {
            "bind": f"127.0.0.1:{self.port}",
            "keys_file": "keys.toml",
            "ledger": "ledger.sqlite",
            "access_log": "access.log",
            "link": "process",
        }
        environment = os.environ | {f"SWITCHYARD_{k.upper()}": v for k, v in settings.items()}
        with open(pathlib.Path(self._directory, "server.log"), "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gunicorn", "-c", str(ROOT / "gunicorn.conf.py")],
                cwd=self._directory,
                env=environment | {"PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.wait()

    def wait(self):
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health/ready").close()
                return
            except OSError:
                time.sleep(0.1)
        raise TimeoutError("the server did not become ready")

    def kill(self):
        self.killed = time.monotonic()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def kill_engine(self):
        """Kills the youngest process of the worker that loads models."""
        [worker] = _children(self._process.pid)
        os.kill(max(_children(worker)), signal.SIGKILL)

    def stop(self):
        self._process.terminate()
        self._process.wait()


def entry(key, more):
    """An entry of the file of keys, as TOML."""
    name, digest = f"key{KEYS.index(key)}", hashlib.sha256(key.encode()).hexdigest()
    role = "admin" if key == KEYS[0] else "user"
    return f'[[keys]]\nname = "{name}"\nrole = "{role}"\nhash = "sha256:{digest}"\n{more}'


def _children(pid):
    return [
        int(child)
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


class Clients:
    def __init__(self, port, num_requests):
        self._port = port
        self._lock = threading.Lock()  # guards the attributes below
        self.num_left = num_requests
        self.answers = {}  # by response id: the key's name, the usage, the time of arrival
        self.ends = collections.Counter()

    def run(self):
        while True:
            with self._lock:
                if not self.num_left:
                    return
                self.num_left -= 1
                number = self.num_left
            while (end := self._try(number)) in (503, "ConnectionRefusedError"):
                time.sleep(0.2)  # the model is being loaded
            with self._lock:
                self.ends[end] += 1

    def _try(self, number):
        try:
            return self._ask(number)
        except (OSError, http.client.HTTPException, ValueError) as error:
            return type(error).__name__

    def _ask(self, number):
        key = number % NUM_KEYS
        body = {
            "prompt": f"Number {number % 97}:",
            "max_tokens": 1 + number % 6,
            "n": 1 + number % 2,
        }
        if number % 2:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        headers = {"Authorization": f"Bearer {KEYS[key]}", "Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        data = response.read().decode()
        connection.close()
        if response.status != 200:
            return response.status
        frames = re.findall(r"data: ({.*})", data) if number % 2 else [data]
        told = [frame for frame in map(json.loads, frames) if frame.get("usage")]
        if not told:
            return "no usage"
        with self._lock:
            self.answers[told[-1]["id"]] = (f"key{key}", told[-1]["usage"], time.monotonic())
        return 200


def read_counters(port):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics", headers={"Authorization": f"Bearer {KEYS[0]}"}
    )
    text = urllib.request.urlopen(request, timeout=10).read().decode()
    return {name: float(value) for name, value in GROWING.findall(text)}


class Watch(threading.Thread):
    """Reads /metrics each second. `fallen`: counters that fell other than at a server's start."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.fallen = set()
        self.is_over = threading.Event()
        self.before = {}
        self.resident = []  # bytes of the newest server
        self._server = server

    def run(self):
        while not self.is_over.wait(1.0):
            try:
                now = read_counters(self._server.port)
            except OSError:
                self.before, self.resident = {}, []
                continue
            self.resident.append(now.pop(RESIDENT))
            self.fallen |= {name for name, value in now.items() if value < self.before.get(name, 0)}
            self.before = now


def faults(directory, clients, killed):
    """Differences between ledger and answers, a line each. Answers within LATE seconds before the
    server was `killed` may be missing, or `lost`, in the ledger.
    """
    ledger = sqlite3.connect(pathlib.Path(directory, "ledger.sqlite"))
    columns = "id, key, state, prompt_tokens, cached_tokens, completion_tokens"
    rows = {row[0]: row[1:] for row in ledger.execute(f"SELECT {columns} FROM requests")}
    late = []
    for identifier, (key, usage, when) in clients.answers.items():
        cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        told = (key, "done", usage["prompt_tokens"], cached, usage["completion_tokens"])
        row = rows.get(identifier)
        if row == told:
            continue
        if (row is None or row[1] == "lost") and 0 <= killed - when < LATE:
            late.append(1000 * (killed - when))
        else:
            yield f"{identifier}: {row}, and its answer {told}"
    if late:
        print(
            f"{len(late)} answers, {min(late):.0f} to {max(late):.0f} ms old, died with the server"
        )
    days = ledger.execute(
        "SELECT sum(requests), sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens)"
        " FROM days"
    ).fetchone()
    sums = ledger.execute(
        "SELECT count(*), sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens)"
        " FROM requests"
    ).fetchone()
    states = dict(ledger.execute("SELECT state, count(*) FROM requests GROUP BY state"))
    print(f"rows {states}; days {days}, rows {sums}")
    if days[1:] != sums[1:]:
        yield f"the days' sums are {days}, those of the rows {sums}"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=20_000)
    args = parser.parse_args()
    header()
    with tempfile.TemporaryDirectory() as directory:
        server = Server(directory)
        clients, watch = Clients(server.port, args.requests), Watch(server)
        threads = [threading.Thread(target=clients.run) for _ in range(NUM_CLIENTS)]
        begin = time.monotonic()
        for thread in (watch, *threads):
            thread.start()
        for share, what in ((1 / 3, "engine"), (1 / 2, "server"), (2 / 3, "engine")):
            while clients.num_left > args.requests * (1 - share):
                time.sleep(0.05)
            if what == "engine":
                server.kill_engine()
            else:
                watch.before = {}
                server.kill()
                server.start()
        for thread in threads:
            thread.join()
        watch.is_over.set()
        watch.join()
        server.stop()
        print(f"{args.requests} requests in {time.monotonic() - begin:.0f} s, ends {clients.ends}")
        found = [
            *faults(directory, clients, server.killed),
            *(f"{name} fell" for name in watch.fallen),
        ]
    tenth = max(len(watch.resident) // 10, 1)
    parts = (watch.resident[tenth : 2 * tenth], watch.resident[-tenth:])
    second, last = (statistics.median(part or [0]) / 1e6 for part in parts)
    print(
        f"resident since the last start: {second:.0f} MB in its second tenth, {last:.0f} in the"
        " last"
    )
    for line in found[:20]:
        print(line)
    print(f"{len(clients.answers)} answers with their usage; {len(found)} faults")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
