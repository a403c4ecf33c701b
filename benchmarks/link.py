#!/usr/bin/env python3
"""What does a tick of the engine cost beside 64 or 256 streams: in a thread, in a process?

    python benchmarks/link.py [--streams 64,256] [--rounds 5]
        [--link thread,process,replicas,two,socket]

`replicas`: a process with the queue of jobs in front of it, as in service. `two`: two of them.
`socket`: one shared engine.

The backend has a token for every job each 20 ms, under the project's own gunicorn.conf.py: one
server for each `link`, in turns. `work`: the engine thread's time between two iterations.
`lateness`: the delay of an iteration's begin. `gap`: between two reads of a client. CPU is that of
all processes of a server.
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
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.client import percentile, post_all  # noqa: E402
from benchmarks.report import header  # noqa: E402
from benchmarks.routing import MODEL, TICK, TokenBackend  # noqa: E402
from benchmarks.steady import family, start_server  # noqa: E402

STATS = "LINK_STATS"  # the file to which a backend reports
LINKS = {  # link -> environment of the server
    "thread": {"SWITCHYARD_LINK": "thread"},
    "process": {"SWITCHYARD_LINK": "process", "LINK_IS_BARE": "1"},
    "replicas": {"SWITCHYARD_LINK": "process"},
    "two": {"SWITCHYARD_LINK": "process", "SWITCHYARD_REPLICAS": "2"},
    "socket": {"SWITCHYARD_LINK": "socket"},
}
NUM_TOKENS = 250
CLOCK = os.sysconf("SC_CLK_TCK")


class TellingBackend(TokenBackend):
    def iterate(self):
        events = super().iterate()
        if not self._jobs:
            path = pathlib.Path(os.environ[STATS])
            path.with_suffix(".new").write_text(json.dumps([self.busy, self.lateness]))
            path.with_suffix(".new").rename(path)
            self.busy, self.lateness = [], []
        return events


def make_backend(*_):
    return TellingBackend(float(os.environ.get("LINK_TICK", TICK)))


def cpu_seconds(pid):
    total = 0
    for one in family(pid):
        with contextlib.suppress(OSError):  # it has ended
            fields = pathlib.Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / CLOCK


def run_engine(at):
    """Runs in the process of a shared engine."""
    import switchyard.engine.models.opening
    from switchyard.app import read_settings
    from switchyard.server.shared_engine import run

    switchyard.engine.models.opening.make_backend = make_backend
    settings = read_settings()
    sys.exit(run(settings.engine_config(), at, settings))


def start_engine(at, environment):
    code = f"from benchmarks.link import run_engine; run_engine({at!r})"
    own = {**environment, "SWITCHYARD_MODEL": MODEL, "SWITCHYARD_LINK": "auto"}
    places = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    own["PYTHONPATH"] = os.pathsep.join(places)
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **own})


class Server:
    def __init__(self, link, directory):
        self._stats = pathlib.Path(directory, link)
        environment = {
            **LINKS[link],
            "SWITCHYARD_MAX_BATCH_SIZE": "256",
            STATS: str(self._stats),
        }
        self._engine = None
        if link == "socket":
            at = f"unix:{directory}/engine.sock"
            self._engine = start_engine(at, environment)
            environment["SWITCHYARD_AT"] = at
        self._process, self._url = start_server(
            MODEL, directory, environment, "benchmarks/link_conf.py"
        )

    def measure(self, num_streams):
        self._stats.unlink(missing_ok=True)
        body = {"prompt": [1], "max_tokens": NUM_TOKENS, "stream": True}
        before = self._cpu_seconds()
        readings = post_all(self._url, "/v1/completions", [body] * num_streams)
        cpu = self._cpu_seconds() - before
        faults = [reading.fault for reading in readings if reading.fault]
        if faults:
            sys.exit(f"{len(faults)} requests failed, the first with: {faults[0]}")
        while not self._stats.exists():
            time.sleep(0.01)
        work, lateness = json.loads(self._stats.read_text())
        gaps = [
            b - a
            for reading in readings
            for (a, _), (b, _) in itertools.pairwise(reading.arrivals[5:-5])
        ]
        milliseconds = {
            f"{name} {share}": 1e3 * percentile(values, share / 100)
            for name, values in (("work", work), ("lateness", lateness), ("gap", gaps))
            for share in (50, 99)
        }
        return {"cpu": cpu / num_streams / NUM_TOKENS * 1e6, **milliseconds}

    def _cpu_seconds(self):
        return sum(cpu_seconds(one.pid) for one in self._processes())

    def _processes(self):
        return [self._process, *([self._engine] if self._engine is not None else [])]

    def stop(self):
        for process in self._processes():
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", default="64,256")
    parser.add_argument("--link", default=",".join(LINKS))
    parser.add_argument("--rounds", type=int, default=5, help="the median counts")
    args = parser.parse_args()
    header()
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        servers = {link: Server(link, directory) for link in args.link.split(",")}
        for server in servers.values():
            stack.callback(server.stop)
            server.measure(1)  # warm up
        for n in map(int, args.streams.split(",")):
            rounds = {link: [] for link in servers}
            for _ in range(args.rounds):
                for link, server in servers.items():
                    rounds[link].append(server.measure(n))
            for link, found in rounds.items():
                numbers = {name: statistics.median(r[name] for r in found) for name in found[0]}
                line = "  ".join(
                    f"{name} p50 {numbers[f'{name} 50']:6.2f} p99 {numbers[f'{name} 99']:6.2f} ms"
                    for name in ("work", "lateness", "gap")
                )
                print(
                    f"streams {n:4d}  {link:8}{numbers['cpu']:6.1f} us of CPU a token  {line}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
