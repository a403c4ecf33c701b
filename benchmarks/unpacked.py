#!/usr/bin/env python3
"""What do float16 copies of the weights gain, without HTTP?

    python benchmarks/unpacked.py MODEL_DIR [--streams 1,8,16,32,64,256] [--rounds 3]

The same model twice in one process, without copies and with (`unpacked_weights`), in turns. Decode:
tokens a second from the step in which all jobs have a token to the first job's end. Prompts: eight
of 7,000 tokens, prompt tokens a second. Medians of the rounds, and the median of their ratios.
"""

import argparse
import pathlib
import random
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.report import header  # noqa: E402
from switchyard import engine  # noqa: E402
from switchyard.engine.backends import make_backend  # noqa: E402

PROMPT, NEW = 100, 96  # tokens; of many streams, the last begins late, so each is longer
LONG, NUM_LONG = 7000, 8
SAMPLING = engine.Sampling(temperature=0.8, top_k=50, top_p=0.8)


def jobs(number, length, new_tokens, vocab_size, seed):
    rng = random.Random(f"{number} {length} {seed}")
    return [
        engine.Job(
            f"job{i}",
            tuple(rng.randrange(300, vocab_size) for _ in range(length)),
            new_tokens,
            SAMPLING,
            ignore_eos=True,
        )
        for i in range(number)
    ]


def rates(backend, waiting):
    """(generated tokens a second, prompt tokens a second)."""
    backend.reset()
    number, prompt_tokens = len(waiting), sum(len(job.prompt) for job in waiting)
    waiting, seen, steps = waiting[::-1], set(), []
    start, all_begun, num_ended = time.perf_counter(), None, 0
    while waiting or backend.num_jobs:
        while waiting and backend.has_room(waiting[-1]):
            backend.enqueue(waiting.pop())
        events = backend.iterate()
        for event in events:
            if isinstance(event, engine.Failed):
                sys.exit(str(event.error))
            if isinstance(event, engine.Chunk | engine.Finished):
                seen.add(event.identifier)
            num_ended += isinstance(event, engine.Finished)
        if all_begun is None and len(seen) == number:
            all_begun = time.perf_counter()
        elif all_begun is not None and not num_ended:
            steps.append(time.perf_counter())
    assert all_begun is not None
    decoded = number * len(steps) / (steps[-1] - all_begun) if steps else 0.0
    return decoded, prompt_tokens / (all_begun - start)


def opened(args, most, unpacked_weights):
    config = engine.ModelConfig(
        args.model,
        "name",
        device="cuda",
        max_batch_size=most,
        cache_tokens=max(most * 512, NUM_LONG * 7168),
        unpacked_weights=unpacked_weights,
    )
    backend = make_backend(config)
    info = backend.open()
    print(f"# {unpacked_weights}: {backend.occupancy().kept}", flush=True)
    return backend, info


def line(name, usual, kept):
    ratio = statistics.median(b / a for a, b in zip(usual, kept, strict=True))
    a, b = statistics.median(usual), statistics.median(kept)
    print(f"{name:>12} {a:10.0f} {b:10.0f} {ratio:7.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--streams", default="1,8,16,32,64,256")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    header()
    sizes = [int(size) for size in args.streams.split(",")]
    (usual, info), (kept, _) = (opened(args, max(sizes), way) for way in ("off", "auto"))
    print(f"{'streams':>12} {'off':>10} {'auto':>10} {'ratio':>7}")
    for size in sizes:
        found = [[], []]
        for round_ in range(args.rounds):
            for backend, into in zip((usual, kept), found, strict=True):
                work = jobs(size, PROMPT, NEW + size, info.vocab_size, round_)
                into.append(rates(backend, work)[0])
        line(size, *found)
    found = [[], []]
    for round_ in range(args.rounds):
        for backend, into in zip((usual, kept), found, strict=True):
            work = jobs(NUM_LONG, LONG, 2, info.vocab_size, round_)
            into.append(rates(backend, work)[1])
    line("prompts", *found)


if __name__ == "__main__":
    main()
