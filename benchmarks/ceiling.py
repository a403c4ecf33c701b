#!/usr/bin/env python3
"""How many tokens a second does one server deliver, and what does it pay for each?

    python benchmarks/ceiling.py [--streams 256] [--tokens 500] [--ticks 0.02,0.007,0]
        [--servers 1,2]

A backend that has a token for every job each tick, in a process of the server's own; or, for two
servers, in one that they share, with half of the streams each. CPU is that of the front ends, of
all processes but the engine's: a token, and of a core while the streams last.
"""

import argparse
import contextlib
import os
import pathlib
import signal
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.client import post_all  # noqa: E402
from benchmarks.link import STATS, cpu_seconds, start_engine  # noqa: E402
from benchmarks.report import header  # noqa: E402
from benchmarks.routing import MODEL  # noqa: E402
from benchmarks.steady import family, start_server  # noqa: E402

CONF = "benchmarks/link_conf.py"
CLOCK = os.sysconf("SC_CLK_TCK")


def own_seconds(pid):
    """CPU of one process, without its children."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK


def engine_of(process):
    """The process that runs the server's engine: the last of its family."""
    return family(process.pid)[-1]


def stop(process):
    process.send_signal(signal.SIGTERM)
    process.wait(60)


def measure(tick, num_servers, num_streams, num_tokens):
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        environment = {
            "SWITCHYARD_LINK": "process",
            "SWITCHYARD_MAX_BATCH_SIZE": str(num_streams),
            STATS: str(pathlib.Path(directory, "stats")),
            "LINK_TICK": tick,
        }
        if num_servers > 1:
            at = f"unix:{directory}/engine.sock"
            stack.callback(stop, start_engine(at, environment))
            environment |= {"SWITCHYARD_LINK": "socket", "SWITCHYARD_AT": at}
        servers = []
        for _ in range(num_servers):
            servers.append(start_server(MODEL, directory, environment, CONF))
            stack.callback(stop, servers[-1][0])
        engines = [engine_of(servers[0][0])] if num_servers == 1 else []

        def front_seconds():
            return sum(cpu_seconds(process.pid) for process, _ in servers) - sum(
                own_seconds(pid) for pid in engines
            )

        def run(tokens):
            body = {"prompt": [1], "max_tokens": tokens, "stream": True}
            readings = [[] for _ in servers]

            def post(i):
                bodies = [body] * (num_streams // num_servers)
                readings[i] = post_all(servers[i][1], "/v1/completions", bodies)

            threads = [threading.Thread(target=post, args=(i,)) for i in range(num_servers)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            faults = [one.fault for part in readings for one in part if one.fault]
            if faults:
                sys.exit(f"{len(faults)} requests failed, the first with: {faults[0]}")

        run(50)
        cpu, begin = front_seconds(), time.perf_counter()
        run(num_tokens)
        wall = time.perf_counter() - begin
        cpu = front_seconds() - cpu
    number = num_streams * num_tokens
    print(
        f"tick {float(tick) * 1000:4.0f} ms  servers {num_servers}  {number / wall:8.0f} tokens/s"
        f"  front ends {cpu / number * 1e6:5.1f} us a token, {cpu / wall * 100:4.0f} % of a core",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=500, help="of each stream")
    parser.add_argument("--ticks", default="0.02,0.007,0", help="seconds")
    parser.add_argument("--servers", default="1,2")
    args = parser.parse_args()
    header()
    for tick in args.ticks.split(","):
        for number in map(int, args.servers.split(",")):
            measure(tick, number, args.streams, args.tokens)


if __name__ == "__main__":
    main()
