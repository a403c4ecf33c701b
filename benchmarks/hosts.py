#!/usr/bin/env python3
"""What does the loss of a shared engine cost its two servers, or the loss of a server?

    python benchmarks/hosts.py [--streams 64] [--rounds 3] [--model DIRECTORY --gpus 0,1]

Real processes: each server has half of the streams, and waiting requests behind them. Without a
model the engine has a token for every job each 20 ms; with one it has a replica on each GPU.
`server`: seconds until the engine has no job of the lost server left; failed streams of the other
server. `engine`: seconds to the error of the first stream that had begun; a killed engine is
started again, a stopped one goes on. `silence_timeout` is subtracted from the times of SIGSTOP.
`lost`: requests that had not begun and did not end completely.
"""

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.client import Client  # noqa: E402
from benchmarks.link import STATS, start_engine  # noqa: E402
from benchmarks.report import header  # noqa: E402
from benchmarks.routing import MODEL  # noqa: E402
from benchmarks.steady import family, start_server  # noqa: E402

SILENCE = 2.0  # seconds
LONG, SHORT = 1500, 10  # tokens
WAITING = 16  # requests of each server that have not begun


class Load(threading.Thread):
    """Streams of one server, all at once."""

    def __init__(self, url, number, num_tokens):
        super().__init__()
        body = {"prompt": [1], "max_tokens": num_tokens, "stream": True, "ignore_eos": True}
        self._bodies = [body] * number
        self._client = Client(url, "/v1/completions")
        self.ended = []  # (time, error or empty), in the order of ends
        self.start()

    def run(self):
        for reading in self._client.post(self._bodies, len(self._bodies)):
            self.ended.append((time.perf_counter(), reading.fault))

    @property
    def failed(self):
        return [when for when, fault in self.ended if fault]


class Shared:
    """An engine, and the two servers that share it."""

    def __init__(self, args, directory, stack):
        self.at = f"unix:{directory}/engine.sock"
        self._model = args.model
        self._environment = {
            "SWITCHYARD_MAX_BATCH_SIZE": str(args.streams),
            "SWITCHYARD_SILENCE_TIMEOUT": str(SILENCE),
            "SWITCHYARD_LOG_LEVEL": "ERROR",
            STATS: str(pathlib.Path(directory, "stats")),
            "LINK_TICK": "0.02",
        }
        if args.model:
            gpus = [int(one) for one in args.gpus.split(",")]
            each = -(-args.streams // len(gpus))
            self._environment |= {
                "SWITCHYARD_GPUS": json.dumps(gpus),
                "SWITCHYARD_REPLICAS": str(len(gpus)),
                "SWITCHYARD_MAX_BATCH_SIZE": str(each),
                "SWITCHYARD_CACHE_TOKENS": str(each * 2048),
            }
        self.engine = self.start_engine()
        stack.callback(lambda: stop(self.engine))
        before = {**self._environment, "SWITCHYARD_LINK": "socket", "SWITCHYARD_AT": self.at}
        self.servers = []
        for _ in range(2):
            conf = "gunicorn.conf.py" if args.model else "benchmarks/link_conf.py"
            self.servers.append(start_server(args.model or MODEL, directory, before, conf))
            stack.callback(stop, self.servers[-1][0])

    def start_engine(self):
        if not self._model:
            return start_engine(self.at, self._environment)
        command = [sys.executable, "-m", "switchyard", "engine", self._model, "--at", self.at]
        environment = {**os.environ, **self._environment}
        return subprocess.Popen(command, cwd=ROOT, env=environment)

    def rows(self, server):
        with urllib.request.urlopen(f"{self.servers[server][1]}/v1/requests", timeout=60) as found:
            return json.load(found)["data"]

    def end_long(self, server):
        for row in self.rows(server):
            if row["completion_tokens"] <= SHORT:
                continue
            url = f"{self.servers[server][1]}/v1/requests/{row['id']}"
            with contextlib.suppress(urllib.error.HTTPError):  # ended meanwhile
                urllib.request.urlopen(urllib.request.Request(url, method="DELETE"), timeout=60)


def stop(process):
    process.send_signal(signal.SIGCONT)
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(60)
        return
    process.kill()


def lose(args, what, number):
    """Returns seconds until the loss is told, other streams that failed, waiting requests that were
    lost.
    """
    grace = SILENCE if number == signal.SIGSTOP else 0.0
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        shared = Shared(args, directory, stack)
        half = args.streams // 2
        long = [Load(url, half, LONG) for _, url in shared.servers]
        wait_for(lambda: len(started(shared.rows(0))) == 2 * half)
        waiting = [Load(url, WAITING, SHORT) for _, url in shared.servers]
        wait_for(lambda: len(shared.rows(0)) == 2 * (half + WAITING))
        before = time.perf_counter()
        if what == "server":
            # Its worker, which has all connections; gunicorn starts another one.
            victim = family(shared.servers[1][0].pid)[1]
            os.kill(victim, number)
            wait_for(lambda: len(shared.rows(0)) <= half + WAITING, every=0.005)
            told = time.perf_counter() - before - grace
            if number == signal.SIGSTOP:
                os.kill(victim, signal.SIGCONT)
            failed, lost = len(long[0].failed), WAITING - whole(waiting[:1], shared)
        else:
            os.kill(shared.engine.pid, number)
            wait_for(lambda: long[0].failed or long[1].failed, every=0.001)
            told = min(when for load in long for when in load.failed) - before
            if number == signal.SIGKILL:
                shared.engine.wait()
                shared.engine = shared.start_engine()
            else:
                os.kill(shared.engine.pid, signal.SIGCONT)
                told -= grace
            failed, lost = 0, 2 * WAITING - whole(waiting, shared)
        for load in [*long, *waiting]:
            load.join()
    return told, failed, lost


def started(rows):
    return [row for row in rows if row["state"] == "decode" and row["completion_tokens"] > 0]


def whole(loads, shared):
    """Number of waiting requests that ended completely, once the long streams have made room."""
    deadline = time.monotonic() + 120
    while any(load.is_alive() for load in loads) and time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # the engine does not listen yet
            shared.end_long(0)
        time.sleep(0.1)
    return sum(not fault for load in loads for _, fault in load.ended)


def wait_for(condition, every=0.02):
    deadline = time.monotonic() + 120
    while not condition():
        if time.monotonic() > deadline:
            sys.exit("it did not come to that in 120 s")
        time.sleep(every)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model")
    parser.add_argument("--gpus", default="0")
    args = parser.parse_args()
    header()
    numbers = signal.SIGKILL, signal.SIGSTOP
    for what, number in itertools.product(("server", "engine"), numbers):
        found = [lose(args, what, number) for _ in range(args.rounds)]
        told = [1e3 * seconds for seconds, _, _ in found]
        num_waiting = WAITING * (1 if what == "server" else 2) * args.rounds
        print(
            f"{what} {number.name}  told p50 {statistics.median(told):.0f} ms, at most"
            f" {max(told):.0f}  failed of the other {sum(failed for _, failed, _ in found)}"
            f"  lost {sum(lost for *_, lost in found)} of {num_waiting}",
            flush=True,
        )


if __name__ == "__main__":
    main()
