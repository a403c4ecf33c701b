#!/usr/bin/env python3
"""How evenly do several servers share out their jobs to several engines?

    python benchmarks/spread.py [--servers 10] [--engines 3] [--seconds 20]

Servers and engines are in this process, over Unix sockets, without a model. Jobs come at random
times to random servers, and have random lengths. They keep 80 % of all places busy. A line for the
number of jobs on the fullest engine over the mean, at 50 moments of a second, and for the time that
jobs wait for their start.
"""

import argparse
import pathlib
import random
import sys
import tempfile
import threading
import time
from functools import partial

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.client import percentile  # noqa: E402
from benchmarks.report import header  # noqa: E402
from benchmarks.routing import MODEL, TokenBackend  # noqa: E402
from switchyard.engine.config import ModelConfig  # noqa: E402
from switchyard.engine.job import Job  # noqa: E402
from switchyard.engine.links.hosts.host import Host  # noqa: E402
from switchyard.engine.links.thread import EngineThread  # noqa: E402
from switchyard.engine.messages import Failed, Finished, Started  # noqa: E402
from switchyard.engine.model.model_dir import ModelDir  # noqa: E402
from switchyard.engine.models.opening import open_engine  # noqa: E402

PLACES = 8  # of an engine
TICK = 0.02  # seconds of a token
TOKENS = (20, 180)  # of an answer, drawn evenly
LOAD = 0.8


class Limited(TokenBackend):
    def has_room(self, job):
        return self.num_jobs < PLACES


def open_all(directory, num_engines, num_servers):
    fingerprint = ModelDir.read(MODEL).fingerprint
    settings = {"path": MODEL, "name": "m", "device": "cpu", "max_batch_size": PLACES}
    hosts = []
    for i in range(num_engines):
        config = ModelConfig(**settings)
        over_thread = partial(EngineThread, config, partial(Limited, TICK))
        hosts.append(Host(config, over_thread, f"unix:{directory}/{i}", b"", fingerprint))
        hosts[-1].start()
    at = tuple(f"unix:{directory}/{i}" for i in range(num_engines))
    servers = [
        open_engine(ModelConfig(**settings, link="socket", at=at)) for _ in range(num_servers)
    ]
    for server in servers:
        server.start()
        assert server.wait_until_loaded(60)
    return hosts, servers


def follow(stream, submitted, waits, failures):
    """Reads a job's events to its end."""
    while True:
        for event in stream.take(60) or ():
            if isinstance(event, Started):
                waits.append(time.monotonic() - submitted)
            elif isinstance(event, Failed):
                failures.append(event)
            if isinstance(event, Finished | Failed):
                return


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in (("servers", 10), ("engines", 3), ("seconds", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    header()
    random.seed(1)
    waits, failures, ratios, threads = [], [], [], []
    seconds_each = sum(TOKENS) / 2 * TICK
    rate = LOAD * PLACES * options.engines / seconds_each
    with tempfile.TemporaryDirectory() as directory:
        hosts, servers = open_all(directory, options.engines, options.servers)
        begin, count, due, look = time.monotonic(), 0, 0.0, seconds_each
        while (now := time.monotonic() - begin) < options.seconds:
            if now >= due:
                due += random.expovariate(rate)
                count += 1
                job = Job(f"{count}", (count % 4000 + 1,), random.randint(*TOKENS))
                stream = random.choice(servers).submit([job])
                given = stream, time.monotonic(), waits, failures
                threads.append(threading.Thread(target=follow, args=given))
                threads[-1].start()
            if now >= look:  # once the load is there
                look += 0.02
                numbers = [host.num_jobs for host in hosts]
                ratios.append(max(numbers) * len(numbers) / max(sum(numbers), 1))
            time.sleep(0.002)
        for thread in threads:
            thread.join()
        for one in (*servers, *hosts):
            one.close(timeout=20)
    fullest, waited = percentile(ratios, 0.5), [percentile(waits, share) for share in (0.5, 0.99)]
    print(
        f"{options.servers} servers, {options.engines} engines of {PLACES}: {count} jobs,"
        f" {len(failures)} failed; fullest / mean {fullest:.2f};"
        f" wait p50 {waited[0] * 1000:.0f} ms, p99 {waited[1] * 1000:.0f} ms"
    )


if __name__ == "__main__":
    main()
