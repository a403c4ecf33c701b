#!/usr/bin/env python3
"""Does anything get lost, stuck, slow or leak under clients that leave, bad requests and faults?

    python benchmarks/soak.py [--requests 20000 | --minutes 10] [--model MODEL_DIR]

Starts a server with the SWITCHYARD_* settings of this environment, whose forward passes fail now
and then, sends it random requests of many kinds from many clients at once, and counts what became
of each. Exit status 1 if one got no clear end, or if the server holds anything that it did not hold
before.

The last requests are the first once more, asked of a server with nothing to do, as those were, so
that their times can be compared. In the middle of the load they can't be: shorter jobs go first, so
within half a minute most clients wait with long prompts, and few are left beside a short one.
"""

import argparse
import collections
import http.client
import json
import math
import os
import pathlib
import random
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.report import header  # noqa: E402
from switchyard.engine.backends import make_backend as make_real_backend  # noqa: E402

CLIENTS = 64
LEAVING, MALFORMED, FAULTS = 0.30, 0.02, 0.01  # shares: of requests, and of forward passes
LASTING = 0.2  # share of the faults that go on for two or three passes, so that a retry won't do
SAMPLE = 1000  # requests whose median time is compared, at the beginning and at the end
BAD_BODIES = (
    b"{",
    b"[]",
    b'{"messages": []}',
    b'{"messages": "hello"}',
    b'{"messages": [{"role": "user", "content": "x"}], "temperature": "warm"}',
    b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": -1}',
    b'{"messages": [{"role": "user", "content": "x"}], "no_such_parameter": 1}',
    b'{"messages": [{"role": "nobody", "content": "x"}]}',
    b'{"messages": [{"role": "user", "content": "' + b"word " * 4000 + b'"}]}',
)
QUESTIONS = (
    "Tell me a story about a {w}.",
    "Repeat this code exactly: {w}{n}",
    "What is {n} + {n}?",
    "Count from 1 to {n}.",
    "Spell the word {w}.",
    "What is the capital of France? {w} {w} {w}",
)
WORDS = ("fox", "river", "lantern", "king", "window", "robot", "apple", "storm", "bridge", "piano")


def make_backend(config, *more):
    """Like the real one, but forward passes fail now and then."""
    backend = make_real_backend(config, *more)
    backend._load = _faulty(backend._load)
    return backend


def _faulty(load):
    rng = random.Random(0)
    left = 0

    def load_faulty(*args):
        loaded = load(*args)
        forward = loaded.model.forward_chunk

        def forward_chunk(*args, **kwargs):
            nonlocal left
            if left == 0 and rng.random() < FAULTS:
                left = rng.randint(2, 3) if rng.random() < LASTING else 1
            if left:
                left -= 1
                raise RuntimeError("a fault that the soak test asked for")
            return forward(*args, **kwargs)

        loaded.model.forward_chunk = forward_chunk
        return loaded

    return load_faulty


class Lost(Exception):
    """A request that did not get exactly one clear end."""


def question(rng):
    text = rng.choice(QUESTIONS).format(w=rng.choice(WORDS), n=rng.randint(1, 40))
    return " ".join([rng.choice(WORDS) for _ in range(rng.choice([0, 0, 0, 20, 300]))] + [text])


def body(rng):
    value = {
        "messages": [{"role": "user", "content": question(rng)}],
        "max_tokens": rng.choice([1, 4, 16, 48, 96]),
        "temperature": rng.choice([0, 0.7, 1.5]),
        "stream": rng.random() < 0.6,
    }
    if rng.random() < 0.1:
        value["n"] = 2
    if rng.random() < 0.2:
        value["stop"] = [".", "the"]
    if rng.random() < 0.2:
        value["repetition_penalty"] = 1.2
    return value


def ask(port, rng):
    """One request; what became of it."""
    if rng.random() < MALFORMED:
        return malformed(port, rng.choice(BAD_BODIES))
    value = body(rng)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    leaves = rng.random() < LEAVING
    try:
        connection.request(
            "POST",
            "/v1/chat/completions",
            json.dumps(value),
            {"Content-Type": "application/json"},
        )
        if leaves:
            return leave(connection, rng)
        response = connection.getresponse()
        data = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise Lost(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()
    return streamed_end(response, data, value) if value["stream"] else whole_end(response, data)


def malformed(port, data):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(
            "POST", "/v1/chat/completions", data, {"Content-Type": "application/json"}
        )
        status = connection.getresponse().status
    finally:
        connection.close()
    if status not in (400, 429, 503):
        raise Lost(f"status {status} for a malformed body")
    return f"malformed, {status}"


def leave(connection, rng):
    """At a random moment: in the queue, in prefill, in decode, after the end; closed or reset."""
    sock = connection.sock
    sock.settimeout(rng.choice([0.001, 0.02, 0.1, 0.5, 2.0]))
    try:
        for _ in range(rng.choice([0, 1, 1, 5, 30])):
            if not sock.recv(4096):
                break
    except TimeoutError:
        pass
    if rng.random() < 0.5:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return "left"


def streamed_end(response, data, value):
    if response.status != 200:
        return refused(response, data)
    frames = [line[6:] for line in data.decode().split("\n") if line.startswith("data: ")]
    if frames.count("[DONE]") != 1 or frames[-1] != "[DONE]":
        raise Lost(f"a stream that ends with {frames[-1:]}")
    bodies = [json.loads(frame) for frame in frames[:-1]]
    errors = [b for b in bodies if "error" in b]
    ends = [c for b in bodies for c in b.get("choices", ()) if c["finish_reason"] is not None]
    if errors:
        if len(errors) > 1 or bodies[-1] is not errors[0]:
            raise Lost(f"{len(errors)} error events in a stream")
        return f"error event, {errors[0]['error']['code']}"
    if sorted(c["index"] for c in ends) != list(range(value.get("n", 1))):
        raise Lost(f"{len(ends)} finish reasons in a stream of {value.get('n', 1)} choices")
    return "complete, streamed"


def whole_end(response, data):
    if response.status != 200:
        return refused(response, data)
    choices = json.loads(data)["choices"]
    if any(choice["finish_reason"] not in ("stop", "length") for choice in choices):
        raise Lost(f"finish reasons {[c['finish_reason'] for c in choices]}")
    return "complete"


def refused(response, data):
    error = json.loads(data)["error"]
    if response.status in (429, 503) and not response.headers.get("Retry-After"):
        raise Lost(f"{response.status} without Retry-After")
    if response.status not in (429, 500, 503):
        raise Lost(f"status {response.status}: {error}")
    return f"status {response.status}, {error['code']}"


class Soak:
    """Those requests that have these numbers, as many as begin before the deadline."""

    def __init__(self, port, numbers, deadline=math.inf):
        self.port = port
        self.numbers = numbers
        self.deadline = deadline
        self.num_begun = 0
        self.outcomes = collections.Counter()
        self.lost = []
        self.times = {}  # of those that completed, by number, in seconds
        self.memory = []  # of the server, after each tenth of the requests, in MB
        self._lock = threading.Lock()

    def run(self):
        threads = [threading.Thread(target=self._client) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for tenth in range(1, 10):
            while self.num_begun < len(self.numbers) * tenth // 10 and threads[0].is_alive():
                time.sleep(0.1)
            self.memory.append(state(self.port)["rss_mb"])
        for thread in threads:
            thread.join()

    def _client(self):
        while True:
            with self._lock:
                if self.num_begun >= len(self.numbers) or time.monotonic() > self.deadline:
                    return
                number = self.numbers[self.num_begun]
                self.num_begun += 1
            begin = time.monotonic()
            try:
                outcome = ask(self.port, random.Random(number))
            except Exception as error:
                with self._lock:
                    self.lost.append(f"request {number}: {type(error).__name__}: {error}")
                continue
            with self._lock:
                self.outcomes[outcome] += 1
                if outcome.startswith("complete"):
                    self.times[number] = time.monotonic() - begin


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as response:
        return json.load(response)


def state(port):
    return get(port, "/soak")


def settled(port):
    """The state once every job has ended; at most a minute later."""
    wait_until(lambda: not state(port)["jobs"], 60)
    free = all_pages_are_free(port)
    wait_until(lambda: not state(port)["jobs"], 20)
    time.sleep(6)  # kept connections are closed after 5 s
    return {**state(port), "all_pages_free": free}


def all_pages_are_free(port):
    """Whether every page of the cache is free: jobs that need them all decode at the same time."""
    meta = get(port, "/v1/models")["data"][0]["meta"]
    length = min(meta["cache_tokens"], meta["max_seq_len"])
    number = meta["cache_tokens"] // length
    value = {"prompt": [1], "max_tokens": length - 1, "n": number, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(
            "POST",
            "/v1/completions",
            json.dumps({**value, "ignore_eos": True}),
            {"Content-Type": "application/json"},
        )

        def decoding():
            rows = get(port, "/v1/requests")["data"]
            return sum(row["state"] == "decode" for row in rows) == number

        return wait_until(decoding, 60)
    finally:
        connection.close()


def wait_until(is_so, seconds):
    deadline = time.monotonic() + seconds
    while not (found := is_so()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def start_server(args, directory):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    environment = os.environ | {
        "SWITCHYARD_BIND": f"127.0.0.1:{port}",
        "SWITCHYARD_MODEL": args.model,
        "SWITCHYARD_LOG_LEVEL": "ERROR",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "gunicorn", "-c", str(ROOT / "benchmarks" / "soak_conf.py")]
    with open(os.path.join(directory, "server.log"), "wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5)
            return process, port
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.2)
    sys.exit(pathlib.Path(directory, "server.log").read_text())


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=60.0, help="at most")
    parser.add_argument("--model", default=str(ROOT / "models" / "demo"))
    args = parser.parse_args()
    header()
    with tempfile.TemporaryDirectory() as directory:
        process, port = start_server(args, directory)
        try:
            sys.exit(0 if report(*soak(port, args)) else 1)
        except Exception:
            print(pathlib.Path(directory, "server.log").read_text()[-10_000:])
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            print(f"server's exit status {process.wait(120)}")


def soak(port, args):
    """The parts of the soak, the state after the first and at the end, the seconds in all."""
    num_first = min(2 * SAMPLE, args.requests // 4)
    begin = time.monotonic()
    deadline = begin + args.minutes * 60
    first = Soak(port, range(num_first), deadline)
    first.run()
    before = settled(port)
    deadline -= time.monotonic() - begin  # as long again as the last will take
    middle = Soak(port, range(num_first, args.requests - num_first), deadline)
    middle.run()
    settled(port)
    last = Soak(port, range(first.num_begun))
    last.run()
    return [first, middle, last], before, settled(port), time.monotonic() - begin


def report(parts, before, after, seconds):
    first, middle, last = parts
    outcomes = sum((part.outcomes for part in parts), collections.Counter())
    lost = [text for part in parts for text in part.lost]
    sample = min(SAMPLE, first.num_begun // 2)
    medians = [
        statistics.median(took for number, took in part.times.items() if number < sample)
        for part in (first, last)
    ]
    print(f"{outcomes.total() + len(lost)} requests in {seconds:.0f} s, {CLIENTS} at a time")
    for outcome, number in sorted(outcomes.items()):
        print(f"  {number:6d}  {outcome}")
    print(f"  {len(lost):6d}  lost")
    for text in lost[:20]:
        print(f"          {text}")
    print(f"after the first {first.num_begun}: {before}")
    print(f"at the end:           {after}")
    print(f"memory, MB, tenth by tenth: {' '.join(f'{mb:.0f}' for mb in middle.memory)}")
    print(f"median time of the first {sample}: {medians[0]:.3f} s")
    print(f"of the same at the end: {medians[1]:.3f} s, {medians[1] / medians[0] - 1:+.1%}")
    same = not any(found[name] for found in (before, after) for name in ("jobs", "zombies"))
    same &= before["all_pages_free"] and after["all_pages_free"]
    same &= after["threads"] <= before["threads"] and after["files"] <= before["files"]
    return not lost and same and after["rss_mb"] < 1.05 * before["rss_mb"]


if __name__ == "__main__":
    main()
