#!/usr/bin/env python3
"""Do keys get what their limits say, whatever else happens, and does the server stay small?

    python benchmarks/limits.py [--requests 10000]

Starts the server with ten keys and its own model: five keys have a limit of requests a minute, five
a limit of tokens a minute. Each key has a client that asks as often as it can, and repeats a
refused request after 50 ms. The file of keys is rewritten each second, and the engine's process is
killed twice. Then each key must have got its limit, within a twentieth. The access log must have a
line for each request, and no log may contain a prompt or a key. Otherwise the exit status is 1.
"""

import argparse
import collections
import http.client
import json
import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.ledger import KEYS, Server, Watch, entry  # noqa: E402
from benchmarks.report import header  # noqa: E402

TEXT = "a text that no log has"
RPM, TPM = 120, 1000
MARGIN = 0.05
AGAIN = 0.05  # seconds from a refusal to the next request


def limits_of(key):
    return f"rpm = {RPM}\n" if KEYS.index(key) % 2 else f"tpm = {TPM}\n"


class Clients:
    """One client for each key. `passed`: requests within limits; `tokens`: tokens that count."""

    def __init__(self, port, num_requests):
        self._port = port
        self._lock = threading.Lock()  # guards the attributes below
        self.num_left = num_requests
        self.ends, self.passed = collections.Counter(), collections.Counter()
        self.tokens = collections.Counter()

    def run(self, key):
        while True:
            with self._lock:
                if not self.num_left:
                    return
                self.num_left -= 1
            try:
                end, tokens = self._ask(key)
            except (OSError, http.client.HTTPException, ValueError) as error:
                end, tokens = type(error).__name__, 0
            with self._lock:
                self.ends[end] += 1
                self.tokens[key] += tokens
                self.passed[key] += end != 429
            if end != 200:
                time.sleep(AGAIN)

    def _ask(self, key):
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        body = json.dumps({"prompt": TEXT, "max_tokens": 8, "ignore_eos": True})
        connection.request("POST", "/v1/completions", body, headers)
        response = connection.getresponse()
        data = response.read()
        connection.close()
        if response.status != 200:
            return response.status, 0
        usage = json.loads(data)["usage"]
        cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        return 200, usage["prompt_tokens"] - cached + usage["completion_tokens"]


class Editor(threading.Thread):
    """Writes the file of keys each second, as `switchyard keys` does."""

    def __init__(self, directory):
        super().__init__(daemon=True)
        self.is_over = threading.Event()
        self._path = pathlib.Path(directory, "keys.toml")
        self.number = 0

    def run(self):
        while not self.is_over.wait(1.0):
            self.number += 1
            other = self._path.with_suffix(".new")
            entries = (entry(key, f'{limits_of(key)}note = "{self.number}"\n') for key in KEYS)
            other.write_text("".join(entries))
            other.chmod(0o600)
            os.replace(other, self._path)


def faults(directory, clients, num_requests, seconds):
    for key in KEYS:
        name, had = ("rpm", clients.passed[key])
        if limits_of(key).startswith("tpm"):
            name, had = "tpm", clients.tokens[key]
        due = (RPM if name == "rpm" else TPM) * (1 + seconds / 60)
        print(f"key{KEYS.index(key)}  {name}  {had:6d} of {due:8.1f}  {had / due:6.3f}")
        if abs(had / due - 1) > MARGIN:
            yield f"key{KEYS.index(key)} has had {had} of {due:.0f}"
    lines = pathlib.Path(directory, "access.log").read_text()
    if lines.count("\n") != num_requests:
        yield f"{lines.count(chr(10))} lines for {num_requests} requests"
    for text in (lines, pathlib.Path(directory, "server.log").read_text()):
        yield from ("a log has a secret" for secret in (TEXT, *KEYS) if secret in text)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    args = parser.parse_args()
    header()
    with tempfile.TemporaryDirectory() as directory:
        server = Server(directory, limits_of)
        clients, watch = Clients(server.port, args.requests), Watch(server)
        editor = Editor(directory)
        threads = [threading.Thread(target=clients.run, args=(key,)) for key in KEYS]
        begin = time.monotonic()
        for thread in (watch, editor, *threads):
            thread.start()
        for share in (1 / 3, 2 / 3):
            while clients.num_left > args.requests * (1 - share):
                time.sleep(0.05)
            server.kill_engine()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - begin
        for thread in (watch, editor):
            thread.is_over.set()
            thread.join()
        server.stop()
        print(f"{args.requests} requests in {seconds:.0f} s, ends {clients.ends}")
        print(f"the file of keys was written {editor.number} times")
        found = [*faults(directory, clients, args.requests, seconds)]
    tenths = [watch.resident[i * len(watch.resident) // 10 :] for i in range(10)]
    tenths = [tenth[: max(len(watch.resident) // 10, 1)] for tenth in tenths]
    print("resident by tenths, MB:", *(f"{statistics.median(t) / 1e6:.1f}" for t in tenths))
    for line in found[:20]:
        print(line)
    print(f"{len(found)} faults")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
