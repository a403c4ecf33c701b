#!/usr/bin/env python3
"""What do clients that are refused, and come back at once, take from those that are served?

    python benchmarks/refusals.py [--clients 256] [--bytes 11000] [--seconds 8] [--pending 131072]

Each client sends a long prompt, reads 16 tokens, and sends the next; after a refusal it asks again
at once. The backend has a token for every job each 10 ms, under the project's own gunicorn.conf.py.
`gap`: between two reads of a stream. `status`: a GET of /v1/status, ten times a second. `load`: the
machine's load average at the end.
"""

import argparse
import itertools
import os
import pathlib
import random
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.client import Client, percentile  # noqa: E402
from benchmarks.link import cpu_seconds  # noqa: E402
from benchmarks.report import header  # noqa: E402
from benchmarks.routing import MODEL  # noqa: E402
from benchmarks.steady import family, start_server  # noqa: E402

NUM_TOKENS = 16
TEXT = "the small old bird went down to a river and said that it would not come back again"


def bodies(num_bytes, deadline):
    """Bodies with texts of their own, until the deadline."""
    draw = random.Random(0)
    while time.monotonic() < deadline:
        words = " ".join(draw.choices(TEXT.split(), k=num_bytes // 3))[:num_bytes]
        yield {"prompt": words, "max_tokens": NUM_TOKENS, "stream": True}


class Probe(threading.Thread):
    """Asks for the status, until it has to stop."""

    def __init__(self, url):
        super().__init__()
        self.took = []
        self.is_over = threading.Event()
        self._url = f"{url}/v1/status"

    def run(self):
        while not self.is_over.wait(0.1):
            begin = time.perf_counter()
            urllib.request.urlopen(self._url, timeout=60).read()
            self.took.append(time.perf_counter() - begin)


def measure(url, args):
    """Answers that ended within the time, refusals of that time, and the probe's seconds."""
    begin, deadline = time.perf_counter(), time.monotonic() + args.seconds
    probe = Probe(url)
    probe.start()
    readings = list(Client(url, "/v1/completions").post(bodies(args.bytes, deadline), args.clients))
    seconds = time.perf_counter() - begin
    probe.is_over.set()
    probe.join()
    return readings, probe.took, seconds


def memory(pid):
    total = 0
    for one in family(pid):
        rollup = pathlib.Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
    return total / 1000


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--bytes", type=int, default=11_000)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--pending", type=int, default=131_072, help="max_pending_tokens")
    args = parser.parse_args()
    header()
    settings = {
        "SWITCHYARD_LINK": "thread",
        "SWITCHYARD_MAX_BATCH_SIZE": str(args.clients),
        "SWITCHYARD_MAX_PENDING_TOKENS": str(args.pending),
        "LINK_TICK": "0.01",
        "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",  # as in scripts/serve
    }
    with tempfile.TemporaryDirectory() as directory:
        settings["LINK_STATS"] = f"{directory}/stats"
        process, url = start_server(MODEL, directory, settings, "benchmarks/link_conf.py")
        before = cpu_seconds(process.pid)
        readings, took, seconds = measure(url, args)
        cpu, most = cpu_seconds(process.pid) - before, memory(process.pid)
        process.terminate()
        process.wait()
    served = [one for one in readings if one.status == 200]
    refused = sum(one.status == 429 for one in readings)
    gaps = [b - a for one in served for (a, _), (b, _) in itertools.pairwise(one.arrivals)]
    others = len(readings) - len(served) - refused
    frames = sum(one.frames for one in served)
    print(
        f"{args.clients} clients: {frames / seconds:.0f} tok/s, gap p99"
        f" {1e3 * percentile(gaps, 0.99):.0f} ms, {refused / seconds:.0f} refused a second,"
        f" status p50 {1e3 * percentile(took, 0.5):.0f} ms, max {1e3 * max(took):.0f} ms,"
        f" {cpu / seconds:.2f} cores, {most:.0f} MB, {others} faults,"
        f" load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
