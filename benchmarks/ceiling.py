#!/usr/bin/env python3
"""How many tokens a second does a server deliver, and at what CPU cost for each?

    python benchmarks/ceiling.py [--streams 256] [--tokens 500] [--ticks 0.02,0.007,0]
        [--servers 1,2] [--model DIRECTORY --gpus 0,1 --rounds 3]

The backend has a token for every job each tick. It runs in its own process behind one server;
two servers share one such process, with half of the streams each. CPU is that of all processes but
the engine's: seconds for a token, and the share of a core while the streams last.

With a model, in turns: one replica behind the first number of servers; one replica on each GPU
behind the last number, with equal streams for each replica.
"""

import argparse
import concurrent.futures
import contextlib
import json
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
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


def engines_of(process, number):
    """The processes of the server's engines: the last of its descendants."""
    return family(process.pid)[-number:]


def stop(process):
    process.send_signal(signal.SIGTERM)
    process.wait(60)


def start_shared(model, at, environment):
    if model is None:
        return start_engine(at, environment)
    command = [sys.executable, "-m", "switchyard", "engine", model, "--at", at]
    places = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    environment = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(places)}
    return subprocess.Popen(command, cwd=ROOT, env=environment)


def measure(environment, num_servers, num_streams, num_tokens, model=None, num_replicas=1):
    """Returns tokens a second, and CPU seconds of the front ends for a token."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        environment = {**environment, STATS: str(pathlib.Path(directory, "stats"))}
        if num_servers > 1:
            at = f"unix:{directory}/engine.sock"
            stack.callback(stop, start_shared(model, at, environment))
            environment |= {"SWITCHYARD_LINK": "socket", "SWITCHYARD_AT": at}
        servers = []
        for _ in range(num_servers):
            conf = CONF if model is None else "gunicorn.conf.py"
            servers.append(start_server(model or MODEL, directory, environment, conf))
            stack.callback(stop, servers[-1][0])
        engines = engines_of(servers[0][0], num_replicas) if num_servers == 1 else []
        # A process for each server's clients: in one process they would share a GIL.
        spawn = multiprocessing.get_context("spawn")
        clients = concurrent.futures.ProcessPoolExecutor(num_servers, spawn)
        stack.enter_context(clients)

        def front_seconds():
            return sum(cpu_seconds(process.pid) for process, _ in servers) - sum(
                own_seconds(pid) for pid in engines
            )

        def run(tokens):
            body = {"prompt": [1], "max_tokens": tokens, "stream": True, "ignore_eos": True}
            bodies = [body] * (num_streams // num_servers)
            done = [clients.submit(post_all, url, "/v1/completions", bodies) for _, url in servers]
            faults = [one.fault for part in done for one in part.result() if one.fault]
            if faults:
                sys.exit(f"{len(faults)} requests failed, the first with: {faults[0]}")

        run(50)
        cpu, begin = front_seconds(), time.perf_counter()
        run(num_tokens)
        wall = time.perf_counter() - begin
        cpu = front_seconds() - cpu
    number = num_streams * num_tokens
    return number / wall, cpu / number


def measure_model(args, gpus, num_servers):
    num_streams = args.streams * len(gpus)
    environment = {
        "SWITCHYARD_LINK": "process",
        "SWITCHYARD_GPUS": json.dumps(gpus),
        "SWITCHYARD_REPLICAS": str(len(gpus)),
        "SWITCHYARD_MAX_BATCH_SIZE": str(args.streams),
        "SWITCHYARD_CACHE_TOKENS": str(args.streams * 1024),
    }
    rate, cpu = measure(environment, num_servers, num_streams, args.tokens, args.model, len(gpus))
    told = f"replicas {len(gpus)}  servers {num_servers}  {rate:8.0f} tokens/s"
    print(f"{told}  front ends {cpu * 1e6:5.1f} us a token, {cpu * rate * 100:4.0f} % of a core")
    return rate


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=500, help="of each stream")
    parser.add_argument("--ticks", default="0.02,0.007,0", help="seconds")
    parser.add_argument("--servers", default="1,2")
    parser.add_argument("--model")
    parser.add_argument("--gpus", default="0,1")
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    header()
    servers = [int(one) for one in args.servers.split(",")]
    if args.model is not None:
        gpus = [int(one) for one in args.gpus.split(",")]
        for _ in range(args.rounds):
            one = measure_model(args, gpus[:1], servers[0])
            print(f"{measure_model(args, gpus, servers[-1]) / one:.3f} times one", flush=True)
        return
    for tick in args.ticks.split(","):
        for number in servers:
            environment = {
                "SWITCHYARD_LINK": "process",
                "SWITCHYARD_MAX_BATCH_SIZE": str(args.streams),
                "LINK_TICK": tick,
            }
            rate, cpu = measure(environment, number, args.streams, args.tokens)
            print(
                f"tick {float(tick) * 1000:4.0f} ms  servers {number}  {rate:8.0f} tokens/s"
                f"  front ends {cpu * 1e6:5.1f} us a token, {cpu * rate * 100:4.0f} % of a core",
                flush=True,
            )


if __name__ == "__main__":
    main()
