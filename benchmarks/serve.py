#!/usr/bin/env python3
"""How fast does a server stream to 1, 8, 32, 64, 128, 256 clients at once?

    python benchmarks/serve.py http://127.0.0.1:8000 [NAME=URL ...] [--streams 1,8,32]

Each client sends its next request once it has its answer. Works against any server with OpenAI's
/v1/completions. Several servers are measured in turns; the last column is the ratio of each
server's speed to the first one's, the median over the rounds. With --engine MODEL_DIR, the first is
an engine thread in its own process, with the SWITCHYARD_* settings of this environment and no
HTTP. A gap is the time between two reads with tokens. `client` is the share of a core that this
program took: near 100% it measures itself.

A gap is the time between two reads that brought tokens. `client` is the share of a core that
this program took: near 100% it measures itself.
"""

import argparse
import collections
import itertools
import json
import pathlib
import statistics
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import load  # noqa: E402
from benchmarks.client import Client, percentile  # noqa: E402
from benchmarks.report import header  # noqa: E402

FIXED = {"ignore_eos": True}  # an extension of OpenAI's API, if the server accepts it


class Round:
    """The measurements between `begin` and `end`, in seconds since the first request."""

    def __init__(self, readings, begin, end, client):
        self.client = client  # its share of a core
        self.faults = collections.Counter(r.fault for r in readings if r.fault)
        self.num_short = 0  # answers with fewer tokens than asked for
        self.first, self.gaps, tokens = [], [], 0.0
        for reading in readings:
            if reading.fault or not reading.arrivals:
                continue
            times = [t for t, _ in reading.arrivals]
            frames = sum(n for _, n in reading.arrivals)
            inside = sum(n for t, n in reading.arrivals if begin <= t < end)
            usage = reading.usage
            total = usage["completion_tokens"] if usage else frames
            tokens += total * inside / frames
            self.num_short += total < reading.body["max_tokens"]
            if begin <= reading.begin < end:
                self.first.append(1e3 * (times[0] - reading.begin))
            self.gaps += [1e3 * (b - a) for a, b in itertools.pairwise(times) if begin <= a < end]
        self.rate = tokens / (end - begin)


class Server:
    def __init__(self, name, url, args):
        self.name = name
        self._url = url.rstrip("/").removesuffix("/v1")
        self.client = Client(self._url, "/v1/completions", args.api_key)
        self._temperature = args.temperature
        self._model = args.model or self._first_model(args.api_key)
        self._extra = FIXED
        for extra in (FIXED, {}):  # warms up, too
            [reading] = self.client.post([self._body("Once", 16, extra)], 1)
            if not reading.fault:
                break
        if reading.fault:
            sys.exit(f"{name}: {reading.fault}")
        self._extra = extra
        if not extra:
            print(f"# {name} refuses ignore_eos: its texts end where they like")

    def _first_model(self, key):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        request = urllib.request.Request(f"{self._url}/v1/models", headers=headers)
        with urllib.request.urlopen(request) as response:
            return json.load(response)["data"][0]["id"]

    def _body(self, prompt, new_tokens, extra):
        return {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": new_tokens,
            "temperature": self._temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            **extra,
        }

    def bodies(self, mix, seed):
        return (self._body(*request, self._extra) for request in mix.requests(seed))

    def measure(self, args, num_streams, seed):
        bodies = self.bodies(load.Load.read(args), seed)
        end = args.warm + args.seconds
        begin, cpu = time.perf_counter(), time.process_time()
        readings = list(self.client.post(load.within(end, bodies), num_streams))
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        return Round(readings, args.warm, end, cpu / seconds)

    def stop(self):
        pass


class EngineAlone:
    """Runs benchmarks/alone.py, which answers each line with a line."""

    name = "engine"

    def __init__(self, path):
        command = [sys.executable, str(ROOT / "benchmarks" / "alone.py"), path]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self._answer()

    def measure(self, args, num_streams, seed):
        names = ("prompt_words", "new_tokens", "warm", "seconds", "temperature")
        values = {name: getattr(args, name) for name in names}
        question = {"num_streams": num_streams, "seed": seed, **values}
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        found = Round([], args.warm, args.warm + args.seconds, 0.0)
        found.rate = self._answer()["rate"]
        return found

    def stop(self):
        self._process.stdin.close()
        self._process.wait()

    def _answer(self):
        for line in self._process.stdout:
            if line.startswith("{"):  # libraries may print other lines
                return json.loads(line)
        sys.exit("the engine alone has ended")


def describe(rounds, first):
    """`first`: the rounds of the first server, to compare with."""
    line = f"{statistics.median(r.rate for r in rounds):9.1f} tok/s"
    for name, values in (
        ("first token", [x for r in rounds for x in r.first]),
        ("gap", [x for r in rounds for x in r.gaps]),
    ):
        if values:
            p50, p99 = percentile(values, 0.5), percentile(values, 0.99)
            line += f"  {name} p50 {p50:7.1f} ms p99 {p99:7.1f} ms"
    if rounds[0].first:
        line += f"  client {max(r.client for r in rounds):4.0%}"
    if rounds is not first:
        ratios = [a.rate / b.rate for a, b in zip(rounds, first, strict=True)]
        line += f"  ratio {statistics.median(ratios):5.3f}"
    if num_short := sum(r.num_short for r in rounds):
        line += f"  {num_short} shorter than asked for"
    errors = sum((r.faults for r in rounds), collections.Counter())
    return line + f"  {errors.total()} errors", errors


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("servers", nargs="+", metavar="URL", help="or NAME=URL")
    parser.add_argument("--engine", metavar="MODEL_DIR")
    parser.add_argument("--model", help="default: the first that the server lists")
    parser.add_argument("--api-key")
    parser.add_argument("--streams", default="1,8,32,64,128,256")
    parser.add_argument("--temperature", type=float, default=0.8)
    load.add_arguments(parser)
    args = parser.parse_args()
    header()
    targets = [EngineAlone(args.engine)] if args.engine else []
    for text in args.servers:
        name, _, url = text.partition("=") if "=" in text else (text, "", text)
        targets.append(Server(name, url, args))
    for n in map(int, args.streams.split(",")):
        rounds = {target.name: [] for target in targets}
        for seed in range(args.rounds):
            for target in targets:
                rounds[target.name].append(target.measure(args, n, 1000 * n + seed))
        for name, found in rounds.items():
            line, errors = describe(found, rounds[targets[0].name])
            print(f"streams {n:4d}  {name:8}{line}", flush=True)
            for error, count in errors.most_common(3):
                print(f"  {count} times: {error}")
    for target in targets:
        target.stop()


if __name__ == "__main__":
    main()
