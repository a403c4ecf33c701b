#!/usr/bin/env python3
"""What do clients see of failures and updates on three machines, and what does TCP cost?

    python benchmarks/nodes.py [--streams 200] [--rounds 5]

The machines are network namespaces (tests/nodes), so it needs root. Each has an engine without a
model, with a token for every job each 10 ms and places for 8 jobs. Two have a server, each with
half of the streams, of 80 tokens. Each token is checked. A row per scenario of
tests/nodes/scenarios.py, with at least `--streams` streams, 36 or 10 at a time: `told` ended with
an error, `lost` otherwise. `told after`: seconds from the failure to the last of these errors,
`silence_timeout` included. `again`: until both servers use all three engines; new engines are forks
of a Python with the imports done. Exit status 1 if a stream was wrong or lost, or ended with an
error where none may.

Then the CPU of a token, of server and engine together on two machines: over a Unix socket, with a
key as well, and over TCP; the mean of `--rounds` in turns.
"""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.client import percentile, post_all  # noqa: E402
from benchmarks.link import cpu_seconds  # noqa: E402
from benchmarks.report import header  # noqa: E402
from benchmarks.routing import MODEL  # noqa: E402
from tests.live.conftest import GUNICORN  # noqa: E402
from tests.nodes.boxes import network  # noqa: E402
from tests.nodes.cluster import SILENCE, Cluster  # noqa: E402
from tests.nodes.load import STREAMS, Load, count, verdict  # noqa: E402
from tests.nodes.scenarios import SCENARIOS, roll, scale  # noqa: E402

KINDS = "whole", "told", "lost", "wrong"
NUM_TOKENS = 500
HALF_FULL = 5  # streams of each server: two engines have more places, however they are shared out


def rest(cluster):
    """Nothing happens."""


def play(cluster, scenario, num_streams, at_once):
    """Print a row. Returns its counts."""
    cluster.wait_until_served(1, 2, 3)
    loads = [Load(server.url, 2000 * i, at_once) for i, server in cluster.servers.items()]
    try:
        cluster.wait_until_busy(3)
        time.sleep(1.0)  # until streams are in all phases
        begin = time.perf_counter()
        scenario(cluster)
        cluster.wait_until_served(1, 2, 3)
        again = time.perf_counter() - begin
        while sum(len(load.readings) for load in loads) < num_streams:
            time.sleep(0.1)
    finally:
        for load in loads:
            load.end()
    seen = count(loads)
    readings = [(load.began, one) for load in loads for one in load.readings]
    told = [began + one.end - begin for began, one in readings if verdict(one) == "told"]
    waits = [one.arrivals[0][0] - one.begin for _, one in readings if one.arrivals]
    numbers = "".join(f"{seen[kind]:7d}" for kind in KINDS)
    first = f"{1e3 * percentile(waits, 0.5):7.0f}{1e3 * percentile(waits, 0.99):7.0f} ms"
    told_after = f"{max(told):8.2f} s" if told else f"{'-':>8}  "
    print(
        f"{scenario.__name__:14}{2 * at_once:8d}{numbers}{told_after:>12}{again:8.1f} s  {first}",
        flush=True,
    )
    return seen


def play_all(directory, num_streams):
    """Returns whether all was as promised."""
    print(f"\nsilence_timeout = {SILENCE:.0f}; load of the machine {os.getloadavg()[0]:.1f}")
    heads = "".join(f"{kind:>7}" for kind in KINDS)
    print(
        f"{'':14}{'at once':>8}{heads}{'told after':>12}{'again':>10}  first token p50, p99",
        flush=True,
    )
    with network(3, directory) as boxes:
        cluster = Cluster(boxes, directory, MODEL)
        plan = [(one, STREAMS) for one in (rest, *SCENARIOS)]
        plan += [(one, HALF_FULL) for one in (rest, roll, scale)]
        rows = [(one, play(cluster, one, num_streams, at_once)) for one, at_once in plan]
        is_well = cluster.close() == [0] * 5
    total = sum(seen.total() for _, seen in rows)
    print(f"{sum(seen['wrong'] for _, seen in rows)} wrong of {total} streams")
    for scenario, seen in rows:
        may_tell = SCENARIOS.get(scenario, False)
        is_well &= not (seen["wrong"] or seen["lost"] or (seen["told"] and not may_tell))
    return is_well


class Pair:
    """An engine in box 2, and a server of it in box 1."""

    def __init__(self, boxes, port, at, **settings):
        engine = ["tests.nodes.engine", "engine", "--at", at]
        settings = {"model": MODEL, "max_batch_size": 64, **settings}
        self.engine = boxes[2].start(port, *engine, link="auto", **settings)
        module, *arguments = GUNICORN[2:]
        settings = {"link": "socket", "at": at, "log_level": "WARNING", **settings}
        self.server = boxes[1].start(port, module, *arguments, **settings)
        self.server.wait_until_ready()

    def cost(self, num_streams):
        """Microseconds of CPU a token."""
        body = {"prompt": [1], "max_tokens": NUM_TOKENS, "stream": True, "ignore_eos": True}
        before = self._cpu_seconds()
        readings = post_all(self.server.url, "/v1/completions", [body] * num_streams)
        if faults := [one.fault for one in readings if one.fault]:
            sys.exit(f"{len(faults)} requests failed, the first with: {faults[0]}")
        return 1e6 * (self._cpu_seconds() - before) / num_streams / NUM_TOKENS

    def _cpu_seconds(self):
        return sum(cpu_seconds(one.process.pid) for one in (self.server, self.engine))


def compare(directory, rounds):
    key = pathlib.Path(directory, "key")
    with network(2, directory / "pairs") as boxes:
        pairs = {
            "unix": Pair(boxes, 8001, f"unix:{directory}/1.sock"),
            "unix, key": Pair(boxes, 8002, f"unix:{directory}/2.sock", engine_key_file=key),
            "tcp, key": Pair(boxes, 8003, f"{boxes[2].address}:7000", engine_key_file=key),
        }
        print(f"\nCPU of a token; load of the machine {os.getloadavg()[0]:.1f}")
        for num_streams in (4, 16, 64):
            found = {name: [] for name in pairs}
            for _ in range(rounds):
                for name, pair in pairs.items():
                    found[name].append(pair.cost(num_streams))
            costs = [f"{name} {statistics.mean(some):6.1f} us" for name, some in found.items()]
            print(f"streams {num_streams:3d}  " + "  ".join(costs), flush=True)
        for pair in pairs.values():
            pair.server.stop()
            pair.engine.stop()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    header()
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        (directory / "pairs").mkdir()
        is_well = play_all(directory, args.streams)
        compare(directory, args.rounds)
    sys.exit(0 if is_well else 1)


if __name__ == "__main__":
    main()
