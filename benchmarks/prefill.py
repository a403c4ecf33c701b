#!/usr/bin/env python3
"""How much do running streams stutter while long prompts arrive?

    python benchmarks/prefill.py [MODEL_DIR] [--chunks 256,512,2048] [--device cpu]

The gap between two tokens of 8 running streams, at the engine's door (no HTTP), while a prompt of
1,500 tokens arrives every second, and without. Both in turns, for each `max_chunk_size`; a chunk of
2048 computes such a prompt in one piece. `longest` is the longest gap of each second, the median of
all seconds: the stall that a newcomer causes, which p99 misses if it is rarer than one gap in 100.
With --cpu-time the clock is that of the engine thread's own work, which neighbours on a shared
machine disturb less; on a GPU it leaves out most of what takes time.
"""

import argparse
import itertools
import pathlib
import random
import statistics
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.client import percentile  # noqa: E402
from benchmarks.report import header  # noqa: E402
from switchyard import engine  # noqa: E402

NUM_STREAMS = 8
PROMPT_TOKENS = 1500
NEW_TOKENS = 16  # of each newcomer
SECONDS = 8.0  # of a round
ROUNDS = 3  # the median counts


def prompt(rng, length):
    return tuple(rng.randrange(300, 2000) for _ in range(length))


class Arrivals:
    """The times at which the running streams' tokens left the engine thread."""

    def __init__(self, model, clock):
        self.clock = clock
        self.times = {}
        self._deliver = model._link._deliver
        model._link._deliver = self

    def __call__(self, events):
        now = time.perf_counter(), self.clock()
        for event in events:
            if isinstance(event, engine.Chunk) and event.identifier in self.times:
                self.times[event.identifier].append(now)
        self._deliver(events)


def measure(model, arrivals, with_newcomers, seed):
    """Returns (gaps between tokens in ms, by second; newcomers' times to first token in ms)."""
    rng = random.Random(seed)
    names = [f"stream{i}" for i in range(NUM_STREAMS)]
    arrivals.times = {name: [] for name in names}
    streams = [
        model.submit([engine.Job(name, prompt(rng, 64), 1900, ignore_eos=True)]) for name in names
    ]
    while not all(arrivals.times.values()):
        time.sleep(0.01)
    begin = time.perf_counter()
    newcomers, first = [], []
    for i in itertools.count():
        wait = begin + i + 0.5 - time.perf_counter()
        if i + 0.5 >= SECONDS:
            break
        time.sleep(max(wait, 0))
        if with_newcomers:
            job = engine.Job(f"new{i}", prompt(rng, PROMPT_TOKENS), NEW_TOKENS, ignore_eos=True)
            thread = threading.Thread(target=read, args=(model, job, first))
            thread.start()
            newcomers.append(thread)
    time.sleep(max(begin + SECONDS - time.perf_counter(), 0))
    end = time.perf_counter()
    for stream in streams:
        stream.close()
    for thread in newcomers:
        thread.join()
    while model.num_jobs:
        time.sleep(0.01)
    seconds = [[] for _ in range(int(SECONDS) + 1)]
    for times in arrivals.times.values():
        for (wall, a), (next_wall, b) in itertools.pairwise(times):
            if begin <= wall and next_wall <= end:
                seconds[int(next_wall - begin)].append(1e3 * (b - a))
    return [gaps for gaps in seconds if gaps], first


def read(model, job, first):
    begin = time.perf_counter()
    stream = model.submit([job])
    while not stream.is_finished:
        if any(isinstance(event, engine.Chunk) for event in stream.take()) and begin:
            first.append(1e3 * (time.perf_counter() - begin))
            begin = None


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=str(ROOT / "models" / "demo"))
    parser.add_argument("--chunks", default="256,512,2048")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cpu-time", action="store_true")
    args = parser.parse_args()
    header()
    for chunk in map(int, args.chunks.split(",")):
        config = engine.ModelConfig(
            args.model,
            "bench",
            args.device,
            "thread",
            cache_tokens=32768,
            max_chunk_size=chunk,
        )
        model = engine.open_engine(config)
        model.start()
        if not model.wait_until_loaded():
            sys.exit(str(model.error))
        arrivals = Arrivals(model, time.thread_time if args.cpu_time else time.perf_counter)
        alone, loaded, first = [], [], []
        for seed in range(ROUNDS):
            alone.append(measure(model, arrivals, False, seed)[0])
            gaps, times = measure(model, arrivals, True, seed)
            loaded.append(gaps)
            first += times
        model.close()
        line, statistic = f"chunk {chunk:4d}", []
        for name, rounds in (("alone", alone), ("newcomers", loaded)):
            flat = [list(itertools.chain(*seconds)) for seconds in rounds]
            p50, p99 = ([percentile(gaps, share) for gaps in flat] for share in (0.5, 0.99))
            longest = [statistics.median(map(max, seconds)) for seconds in rounds]
            statistic.append((p99, longest))
            line += f"  {name}: gap p50 {statistics.median(p50):5.1f}"
            line += (
                f" p99 {statistics.median(p99):5.1f} longest {statistics.median(longest):5.1f} ms"
            )
        for name, before, after in zip(("p99", "longest"), *statistic, strict=True):
            ratios = [b / a for a, b in zip(before, after, strict=True)]
            line += f"  {name} x{statistics.median(ratios):.2f}"
        print(f"{line}  newcomer's first token p50 {percentile(first, 0.5):.0f} ms", flush=True)


if __name__ == "__main__":
    main()
