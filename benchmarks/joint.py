#!/usr/bin/env python3
"""What do passes over prompts and decode steps together gain, without HTTP?

    python benchmarks/joint.py MODEL_DIR [--streams 8,64,256] [--rounds 3] [--seconds 6]

One model on a GPU with such passes and without, in turns. Whenever a job ends, another one arrives,
with a new prompt of 20 to 340 tokens and 32 to 256 tokens to generate. Tokens per second, the gap
between two tokens of a stream, and the time from a job's arrival to its first token. Medians of the
rounds, and of their ratios.
"""

import argparse
import itertools
import pathlib
import random
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.client import percentile  # noqa: E402
from benchmarks.report import header  # noqa: E402
from switchyard import engine  # noqa: E402
from switchyard.engine.backends import make_backend  # noqa: E402

PROMPTS, NEW = (20, 85, 85, 340), (32, 64, 128, 256)
SAMPLING = engine.Sampling(temperature=0.8, top_k=50, top_p=0.8)
WARM = 3.0  # seconds


def jobs(vocab_size, seed):
    rng = random.Random(seed)
    for number in itertools.count():
        prompt = tuple(rng.randrange(300, vocab_size) for _ in range(rng.choice(PROMPTS)))
        name = f"{seed} {number}"
        yield engine.Job(name, prompt, rng.choice(NEW), SAMPLING, ignore_eos=True)


def measure(backend, work, streams, seconds):
    """(tokens a second, ms of gaps: p50 and p99, ms to the first token: p50 and p99)."""
    backend.reset()
    waiting, arrived, last = [], {}, {}
    gaps, firsts, num_tokens = [], [], 0
    start = time.perf_counter()
    begin, end = start + WARM, start + WARM + seconds
    while (now := time.perf_counter()) < end:
        while len(waiting) + backend.num_jobs < streams:
            waiting.append(job := next(work))
            arrived[job.identifier] = now
        while waiting and backend.has_room(waiting[0]):
            backend.enqueue(waiting.pop(0))
        events = backend.iterate()
        now = time.perf_counter()
        for event in events:
            if isinstance(event, engine.Failed):
                sys.exit(str(event.error))
            if isinstance(event, engine.Chunk):
                name = event.identifier
                if now > begin:
                    num_tokens += len(event.token_ids)
                    if name in last:
                        gaps.append(1000 * (now - last[name]))
                    else:
                        firsts.append(1000 * (now - arrived[name]))
                last[name] = now
    return [
        num_tokens / seconds,
        *(percentile(values, p) for values in (gaps, firsts) for p in (0.5, 0.99)),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--streams", default="8,64,256")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    args = parser.parse_args()
    header()
    sizes = [int(size) for size in args.streams.split(",")]
    config = engine.ModelConfig(
        args.model,
        "name",
        device="cuda",
        max_batch_size=max(sizes),
        cache_tokens=max(sizes) * 768,
        max_seq_len=2048,
    )
    backend = make_backend(config)
    begin = time.monotonic()
    info = backend.open()
    print(
        f"# {time.monotonic() - begin:.1f} s to load, {info.products}, {backend.occupancy().kept}"
    )
    passes = backend._loaded.passes
    ways = {"apart": lambda *args: False, "joint": passes.can_join}
    print(f"{'streams':>8}{'':8}{'tok/s':>8}{'gap p50':>9}{'p99':>7}{'first p50':>11}{'p99':>8}")
    for size in sizes:
        found = {way: [] for way in ways}
        for round_ in range(args.rounds):
            for way, can_join in ways.items():
                passes.can_join = can_join
                work = jobs(info.vocab_size, f"{size} {round_}")
                found[way].append(measure(backend, work, size, args.seconds))
        for way, rounds in found.items():
            a, b, c, d, e = map(statistics.median, zip(*rounds, strict=True))
            print(f"{size:8}{way:>8}{a:8.0f}{b:9.2f}{c:7.2f}{d:11.1f}{e:8.1f}")
        ratios = [
            [b / a for a, b in zip(*both, strict=True)]
            for both in zip(found["apart"], found["joint"], strict=True)
        ]
        a, b, c, d, e = map(statistics.median, zip(*ratios, strict=True))
        print(f"{size:8}{'ratio':>8}{a:8.2f}{b:9.2f}{c:7.2f}{d:11.2f}{e:8.2f}", flush=True)


if __name__ == "__main__":
    main()
