#!/usr/bin/env python3
"""What do our own matrix products gain, without HTTP?

    python benchmarks/products.py MODEL_DIR [--streams 1,2,4,8,16,32,64] [--rounds 3]

The same model in one process with exllamav2's products and with ours, each without and with float16
copies of the weights (`unpacked_weights`), in turns. Tokens a second of decoding, from the step in
which all jobs have a token to the first job's end; in the last row, of eight prompts of 7,000
tokens. Medians of the rounds, and of their ratios.
"""

import argparse
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.report import header  # noqa: E402
from benchmarks.unpacked import LONG, NEW, NUM_LONG, PROMPT, jobs, rates  # noqa: E402
from switchyard import engine  # noqa: E402
from switchyard.engine.backends import make_backend  # noqa: E402

WAYS = {
    "exllamav2": ("exllamav2", "off"),
    "copied": ("exllamav2", "auto"),
    "own": ("auto", "off"),
    "own copied": ("auto", "auto"),
}


def opened(args, way, most, gib):
    products, unpacked = WAYS[way]
    config = engine.ModelConfig(
        args.model,
        "name",
        device="cuda",
        max_batch_size=most,
        cache_tokens=max(most * 512, NUM_LONG * 7168),
        products=products,
        unpacked_weights=gib if unpacked == "auto" else unpacked,
    )
    backend = make_backend(config)
    begin = time.monotonic()
    info = backend.open()
    print(f"# {way}: {time.monotonic() - begin:.1f} s, {info.products}, {backend.occupancy().kept}")
    return backend, info


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--streams", default="1,2,4,8,16,32,64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default=",".join(WAYS))
    args = parser.parse_args()
    header()
    sizes, ways = [int(size) for size in args.streams.split(",")], args.ways.split(",")
    opened_ones = [opened(args, way, max(sizes), "auto") for way in ways]
    vocab_size = opened_ones[0][1].vocab_size
    print("streams " + " ".join(f"{way:>10}" for way in ways) + "   ratios to the first")
    rows = [(str(size), (size, PROMPT, NEW + size), 0) for size in sizes]
    for name, shape, column in [*rows, ("prompts", (NUM_LONG, LONG, 1), 1)]:
        found = {way: [] for way in ways}
        for round_ in range(args.rounds):
            for way, (backend, _) in zip(ways, opened_ones, strict=True):
                found[way].append(rates(backend, jobs(*shape, vocab_size, round_))[column])
        first = found[ways[0]]
        ratios = [
            statistics.median(b / a for a, b in zip(first, found[way], strict=True)) for way in ways
        ]
        print(
            f"{name:>7} "
            + " ".join(f"{statistics.median(found[way]):10.0f}" for way in ways)
            + "   "
            + " ".join(f"{ratio:.2f}" for ratio in ratios),
            flush=True,
        )


if __name__ == "__main__":
    main()
