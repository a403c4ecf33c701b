#!/usr/bin/env python3
"""What can one attacker take from a good client, by what it sends?

    python benchmarks/siege.py [--links thread,process,socket] [--attacks NAME,...] [--seconds 6]

The server has the project's own model. A good client reads long greedy streams, and a probe asks
/health/live five times a second. One attack at a time runs beside them, from its own process:
with at most 50 connections and 64 MB in all, with 256 that come back at once after a refusal, or
with 1,100 silent or slow connections.

A row shows an attack: the good client's rate relative to the seconds before; the 99th percentile of
the gaps between its events; the slowest probe; the memory of all the server's processes after it,
relative to before. Ratios are from one run; the attacker's own CPU counts. The first rows are no
attacks: equal numbers of honest clients, each with an equal share. With the link `socket` the
server shares an engine, which is a separate process. The last rows have a file of keys, a trusted
proxy, or directories of models, and their attackers change or use these.

All rows take about half an hour a link; on a busy machine the numbers mean little.

Exit status 1 if a row misses a target: half the rate, or half of that beside as many honest
clients; gaps of 250 ms, probes of 1 s, 5 % of memory.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import math
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.client import percentile  # noqa: E402
from benchmarks.intruders import (  # noqa: E402
    SPENDER,
    Keyed,
    KeysFile,
    Loads,
    Removal,
    authorized,
    become_half,
    become_huge,
    become_pipe,
)
from benchmarks.report import header  # noqa: E402

CONNECTIONS, MAX_BYTES = 50, 64_000_000  # limits of an attack
AGAIN = 256  # connections that come back at once when they are refused
MANY = 1100  # connections that send nothing, or slowly
QUIET = 4.0  # seconds before an attack
AFTER = 15.0  # seconds after it in which memory must come back
RATE, GAP, PROBE, MEMORY = 0.5, 0.25, 1.0, 1.05  # targets
BIG = 4_000_000  # bytes of a body
COMPLETIONS, CHAT, TOKENIZE = "/v1/completions", "/v1/chat/completions", "/tokenize"


# Attacks, in their own process, against `port`, until `deadline`


class Flood:
    """Repeats the same requests, on `connections` at once."""

    def __init__(self, path, make_body, connections=CONNECTIONS, headers=()):
        self.path = path
        self.make_body = make_body  # called with the request's number
        self.connections = connections
        self.headers = {"Content-Type": "application/json", **dict(headers)}
        self.max_bytes = MAX_BYTES

    def headers_of(self, number):
        return self.headers

    def run(self, port, deadline, directory):
        self.left, self.number, self.lock = self.max_bytes, 0, threading.Lock()
        threads = [
            threading.Thread(target=self._send, args=(port, deadline))
            for _ in range(self.connections)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _send(self, port, deadline):
        while (left := deadline - time.monotonic()) > 0:
            with self.lock:
                body, headers = self.make_body(self.number), self.headers_of(self.number)
                self.number += 1
                self.left -= len(body)
                if self.left < 0:
                    return
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=max(left, 0.1))
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection.request("POST", self.path, body, headers)
                response = connection.getresponse()
                while time.monotonic() < deadline and response.read1(65536):
                    pass
            connection.close()


class Hold:
    """Holds connections open; each sends `first`, then `drip` once a second."""

    def __init__(self, connections, first=b"", drip=b"", reads=True):
        self.connections = connections
        self.first = first
        self.drip = drip
        self.reads = reads

    def run(self, port, deadline, directory):
        held = []
        while time.monotonic() < deadline:
            while len(held) < self.connections:  # reopens connections that the server has closed
                held.append(self._open(port))
            time.sleep(1.0)
            held = [sock for sock in held if self._is_open(sock)]

    def _open(self, port):
        sock = socket.socket()
        if not self.reads:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(1.0)
        with contextlib.suppress(OSError):
            sock.connect(("127.0.0.1", port))
            sock.sendall(self.first)
        sock.setblocking(False)
        return sock

    def _is_open(self, sock):
        try:
            if self.drip:
                sock.send(self.drip)
            if self.reads and not sock.recv(4096):
                raise ConnectionResetError
        except BlockingIOError:
            pass
        except OSError:
            sock.close()
            return False
        return True


class Leave:
    """Requests whose client resets the connection at once."""

    def run(self, port, deadline, directory):
        data = json_of(prompt="Once upon a time", max_tokens=1000, stream=True)
        while time.monotonic() < deadline:
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                sock.sendall(head(COMPLETIONS, len(data)) + data)


class WrongKeys(Keyed, Flood):
    """Keys that there are not, from the good client's address."""

    def headers_of(self, number):
        return self.headers | authorized(f"a-wrong-key-{number}")


class Spender(Keyed, Flood):
    """Requests at once that each take what is left of a budget."""

    def headers_of(self, number):
        return self.headers | authorized(SPENDER)


class ManyAddresses(Flood):
    """Addresses of one network of IPv6, as a proxy names them."""

    def prepare(self, directory):
        return {"trusted_proxies": "127.0.0.1"}

    def headers_of(self, number):
        return self.headers | {"X-Forwarded-For": f"2001:db8::{number % 40 + 1:x}"}


def json_of(**body):
    return json.dumps(body).encode()


def head(path, length, *more):
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {length}", *more, "", ""]).encode()


def completion(**more):
    return json_of(prompt="x", max_tokens=4, **more)


def chat(**more):
    return json_of(messages=[{"role": "user", "content": "x"}], max_tokens=4, **more)


def constrained(make_text, name="grammar"):
    """Each request has its own constraint, so that no cache helps."""
    return lambda number: completion(**{name: make_text(number)})


def tools(number):
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(50)}}
    functions = [
        {"name": f"f{number}_{i}", "parameters": schema, "strict": True} for i in range(128)
    ]
    return chat(tools=[{"type": "function", "function": f} for f in functions])


def any_of(number):
    return {"anyOf": [{"const": f"{number}-{i}"} for i in range(25_000)]}


def objects(number):
    return {"enum": [{"a": i, "b": [number, str(i)]} for i in range(400)]}


# Grammars that can be read in very many ways: each token takes longer than the one before.
SLOW = {
    "e: e e e": 'start: e\ne: e e e | e e | /[a-z ]/ | ""',
    "e: e e e e": "start: e\ne: e e e e | e e e | e e | /[a-z ]/",
    "start: e e e e": 'start: e e e e\ne: e e | /[a-z ]/ e | ""',
}


def slow(grammar):
    body = json_of(prompt="Once upon a time", max_tokens=150, grammar=grammar, ignore_eos=False)
    return lambda _: body


def deep(number):
    return "[" * 100_000 + str(number)


SLOW_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
UPGRADE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
STREAM = json_of(prompt="Once upon a time", max_tokens=1000, stream=True, ignore_eos=True)
CHUNKED = SLOW_HEAD + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"

ATTACKS = {
    **{
        f"{n} short requests": Flood(COMPLETIONS, lambda _: completion(), n) for n in (4, 8, 16, 50)
    },
    "50 streams": Flood(COMPLETIONS, lambda _: STREAM),
    "silent": Hold(MANY),
    "slow heads": Hold(MANY, SLOW_HEAD, b"X-A: b\r\n"),
    "slow bodies": Hold(MANY, head(COMPLETIONS, 1000), b" "),
    "slow bodies to nowhere": Hold(MANY, head("/nowhere", 1000), b" "),
    "chunks of a byte": Hold(CONNECTIONS, CHUNKED, b"1\r\n \r\n" * 2000),
    "large heads": Hold(CONNECTIONS, SLOW_HEAD, b"X-A: " + b"b" * 8000 + b"\r\n"),
    "silent WebSockets": Hold(CONNECTIONS, UPGRADE),
    "readers that stop": Hold(CONNECTIONS, head(COMPLETIONS, len(STREAM)) + STREAM, reads=False),
    "leavers": Leave(),
    "quotes": Flood(COMPLETIONS, constrained(lambda n: f"start: {n} " + '"\\"\\"\\"' * 60_000), 4),
    "blank lines": Flood(COMPLETIONS, constrained(lambda n: f"# {n}\n" + " \n" * 200_000), 4),
    "regexes": Flood(COMPLETIONS, constrained(lambda n: f"({n}|a{{1,99}}){{1,99}}", "regex")),
    "anyOf of 25000": Flood(COMPLETIONS, constrained(any_of, "json_schema"), 8),
    "enum of objects": Flood(COMPLETIONS, constrained(objects, "json_schema")),
    "tools": Flood(CHAT, tools, 16),
    "stop strings": Flood(
        COMPLETIONS, lambda n: completion(stop=[f"{n}-{i}" for i in range(9999)])
    ),
    "messages": Flood(
        CHAT,
        lambda n: json_of(messages=[{"role": "user", "content": "x" * 100}] * 2048, max_tokens=1),
    ),
    "texts of 4 MB": Flood(TOKENIZE, lambda n: json_of(content="word " * (BIG // 5)), 16),
    "prompts of 4 MB": Flood(COMPLETIONS, lambda n: completion()[:-1] + b" " * BIG + b"}", 16),
    "long prompts at once": Flood(
        COMPLETIONS, lambda n: json_of(prompt=f"{n} " + "word " * 1200, max_tokens=4), AGAIN
    ),
    "a million tokens": Flood(COMPLETIONS, lambda n: json_of(prompt=[1] * (BIG // 3)), 16),
    "a million lists": Flood(COMPLETIONS, lambda n: json_of(prompt=[[1]] * (BIG // 5)), 16),
    "deep lists": Flood(COMPLETIONS, lambda n: b'{"prompt": ' + deep(n).encode(), 16),
    "bodies too large": Flood(COMPLETIONS, lambda n: b" " * (BIG + 5_000_000), 7),
    "identical keys": Flood(
        COMPLETIONS, lambda n: completion(), headers=[("Idempotency-Key", "k")]
    ),
    **{
        f"{name} x{n}": Flood(COMPLETIONS, slow(grammar), n)
        for name, grammar in SLOW.items()
        for n in (1, 16, 32)
    },
    "loops": Flood(
        COMPLETIONS,
        lambda n: json_of(prompt="a a a a a a a a", max_tokens=64, stop_on_loop=True),
        8,
    ),
    "wrong keys": WrongKeys(COMPLETIONS, lambda n: completion()),
    "addresses of a /64": ManyAddresses(COMPLETIONS, lambda n: completion(), 40),
    "negative prompts": Flood(
        COMPLETIONS, lambda n: completion(negative_prompt=f"{n} never " * 300, cfg_scale=1.5), 8
    ),
    "a budget at once": Spender(COMPLETIONS, lambda n: completion(n=1)),
    "the ledger removed": Removal(),
    "keys_file: all": KeysFile(become_pipe, become_half, become_huge),
    "keys_file: a pipe": KeysFile(become_pipe),
    "keys_file: many keys": KeysFile(become_huge),
    "keys_file: half written": KeysFile(become_half),
    "strangers' directories": Loads(),
}


# The good client, and the probe


class Good:
    """Reads streams one after the other, and notes the times of their events."""

    def __init__(self, port, headers=()):
        self.port = port
        self.headers = {"Content-Type": "application/json", **dict(headers)}
        self.arrivals = []
        self.faults = []
        self.probes = []  # (begin, seconds)
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._stream),
            threading.Thread(target=self._probe),
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def rate(self, begin, end):
        return sum(begin <= t < end for t in self.arrivals) / (end - begin)

    def gap(self, begin, end):
        """The 99th percentile in seconds. Begin and end count as events: silence is a gap."""
        times = [begin, *(t for t in self.arrivals if begin <= t < end), end]
        return percentile([b - a for a, b in itertools.pairwise(times)], 0.99)

    def slowest_probe(self, begin, end):
        return max((took for at, took in self.probes if begin <= at < end), default=float("inf"))

    def _stream(self):
        body = json_of(
            prompt="Once upon a time", max_tokens=400, temperature=0, stream=True, ignore_eos=True
        )
        while not self._is_over.is_set():
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
                connection.request("POST", COMPLETIONS, body, self.headers)
                response = connection.getresponse()
                if response.status != 200:
                    raise OSError(f"status {response.status}: {response.read()[:200]!r}")
                while line := response.readline():
                    if line.startswith(b"data: {"):
                        if b'"error"' in line:
                            raise OSError(line.decode())
                        self.arrivals.append(time.monotonic())
                    if self._is_over.is_set():
                        break
            except (OSError, http.client.HTTPException) as error:
                self.faults.append(f"{type(error).__name__}: {error}")
                time.sleep(0.2)
            finally:
                connection.close()

    def _probe(self):
        while not self._is_over.wait(0.2):
            begin = time.monotonic()
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health/live", timeout=60)
            self.probes.append((begin, time.monotonic() - begin))


def family(pid):
    """A process and its descendants."""
    found = [pid]
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            found += family(int(child))
    return found


def memory(pids):
    """Memory of all the server's processes in MB; shared pages count once."""
    total = 0
    for one in itertools.chain.from_iterable(map(family, pids)):
        lines = pathlib.Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1000


@contextlib.contextmanager
def running(command, directory, environment):
    """A process, and the file of what it says."""
    log = pathlib.Path(directory, f"{command[2]}.log")
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=directory, env=environment, stdout=file, stderr=file
        )
    try:
        yield process, log
    finally:
        process.send_signal(signal.SIGTERM)
        if status := process.wait(120):
            print(f"{command[2]} ends with status {status}\n{log.read_text()[-3000:]}")


@contextlib.contextmanager
def serving(link, attack):
    """The server's port, the ids of its processes, and its directory."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    environment = os.environ | {
        "SWITCHYARD_BIND": f"127.0.0.1:{port}",
        "SWITCHYARD_NGRAM_DRAFT": "true",
        "SWITCHYARD_IDEMPOTENCY_TIMEOUT": "60",
        "SWITCHYARD_LOG_LEVEL": "ERROR",
        "PYTHONPATH": str(ROOT),
        "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",  # as in scripts/serve
    }
    server = [sys.executable, "-m", "gunicorn", "-c", str(ROOT / "gunicorn.conf.py")]
    with contextlib.ExitStack() as stack:
        directory, pids = stack.enter_context(tempfile.TemporaryDirectory()), []
        settings = attack.prepare(directory) if hasattr(attack, "prepare") else {}
        environment |= {f"SWITCHYARD_{name.upper()}": value for name, value in settings.items()}
        if link == "socket":
            at = f"unix:{directory}/engine.sock"
            engine = [sys.executable, "-m", "switchyard", "engine", "--at", at]
            pids.append(stack.enter_context(running(engine, directory, environment))[0].pid)
            environment["SWITCHYARD_AT"] = at
        environment["SWITCHYARD_LINK"] = link
        process, log = stack.enter_context(running(server, directory, environment))
        deadline = time.monotonic() + 120
        while not is_ready(port):
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(log.read_text())
            time.sleep(0.2)
        yield port, [*pids, process.pid], directory


def is_ready(port):
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5).status
    except OSError:
        return None


def crowd_of(name):
    """The row of as many honest clients as an attack has requests; None without one."""
    if name == "readers that stop":
        return "50 streams"
    attack = ATTACKS[name]
    if not isinstance(attack, Flood):
        return None
    size = next((size for size in (4, 8, 16) if attack.connections <= size), 50)
    return f"{size} short requests"


def besiege(link, names, seconds):
    """Prints a row for each attack. Returns whether all targets were met."""
    is_good, rates = True, {}
    print(f"{'link':8} {'attack':24} {'rate':>6} {'gap p99':>9} {'probe':>8} {'memory':>7}")
    for name in names:
        headers = getattr(ATTACKS[name], "good", ())
        with (
            serving(link, ATTACKS[name]) as (port, pids, directory),
            Good(port, headers) as good,
        ):
            time.sleep(QUIET / 2)  # the first stream has begun
            begin = time.monotonic()
            time.sleep(QUIET)
            before = memory(pids)
            attack = [sys.executable, __file__, "--port", str(port), "--attacks", name]
            attack += ["--directory", directory]
            start = time.monotonic()
            process = subprocess.Popen([*attack, "--seconds", str(seconds)])
            process.wait(seconds + 60)
            end = time.monotonic()
            rate = good.rate(start, end) / max(good.rate(begin, start), 0.01)
            gap, probe = good.gap(start, end), good.slowest_probe(start, end)
            deadline = time.monotonic() + AFTER
            while (after := memory(pids) / before) > MEMORY and time.monotonic() < deadline:
                time.sleep(0.5)
            rates[name] = rate
            is_slow = rate < RATE and rate < RATE * rates.get(crowd_of(name), 2.0)
            missed = is_slow or gap > GAP or probe > PROBE or after > MEMORY or good.faults
            missed = missed and not name[0].isdigit()
            is_good &= not missed
            print(
                f"{link:8} {name:24} {rate:5.0%} {gap * 1000:6.0f} ms {probe * 1000:5.0f} ms"
                f" {after:6.1%}{'  missed' if missed else ''}",
                *good.faults[:1],
                flush=True,
            )
    return is_good


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--links", default="thread,process")
    parser.add_argument("--attacks", default=",".join(ATTACKS), help="names, with commas")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each attack")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)  # be the attacker
    parser.add_argument("--directory", default="", help=argparse.SUPPRESS)
    parser.add_argument("--key", help=argparse.SUPPRESS)
    parser.add_argument("--connections", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    names = [name for name in ATTACKS if name in args.attacks.split(",")]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if args.port:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        attack = ATTACKS[names[0]]
        if isinstance(attack, Flood):
            attack.connections = min(attack.connections, args.connections or CONNECTIONS)
            attack.max_bytes = math.inf if args.connections else MAX_BYTES
            attack.headers |= authorized(args.key) if args.key else {}
        attack.run(args.port, time.monotonic() + args.seconds, args.directory)
        return
    header()
    results = [besiege(link, names, args.seconds) for link in args.links.split(",")]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
