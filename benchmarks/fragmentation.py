#!/usr/bin/env python3
"""What does it cost if a job's pages are scattered over the cache?

    python benchmarks/fragmentation.py [MODEL_DIR]

A page is found through a table, so the server never moves one.
Measured are decode steps of 8 jobs, engine only, in turns on one backend: with each job's pages
adjacent and in order, and with pages from a shuffled list of free pages.
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

from benchmarks.report import header  # noqa: E402
from switchyard.engine.backends import make_backend  # noqa: E402
from switchyard.engine.config import ModelConfig  # noqa: E402
from switchyard.engine.job import Job  # noqa: E402
from switchyard.engine.sampling import Sampling  # noqa: E402

NUM_JOBS = 8
PROMPT_TOKENS = 1500
NUM_STEPS = 200
ROUNDS = 9  # the median counts


def order_pages(backend, rng):
    """Free pages are taken by age: give them ages in order, or at random."""
    generator = backend._generator
    generator.reset_page_table()
    ages = list(range(generator.max_pages))
    if rng is not None:
        rng.shuffle(ages)
    for page, age in zip(generator.all_pages, ages, strict=True):
        page.access_serial = age


def scatter(backend):
    """Share of a job's pages that don't follow the page before."""
    jobs = [job.sequences[0].allocated_pages for job in backend._generator.active_jobs]
    pairs = [(a, b) for pages in jobs for a, b in itertools.pairwise(pages)]
    return sum(b.page_index != a.page_index + 1 for a, b in pairs) / len(pairs)


def measure(backend, seed):
    """Returns (seconds of a decode step, scatter)."""
    rng = random.Random(seed)
    for i in range(NUM_JOBS):
        prompt = tuple(rng.randrange(300, 2000) for _ in range(PROMPT_TOKENS))
        greedy = Sampling(temperature=0.0)
        backend.enqueue(Job(f"job{i}", prompt, NUM_STEPS + 20, greedy, ignore_eos=True))
        while not all(job.is_prefill_done() for job in backend._generator.active_jobs):
            backend.iterate()
        backend.iterate()
    scattered = scatter(backend)
    begin = time.perf_counter()
    for _ in range(NUM_STEPS - NUM_JOBS * 4):
        backend.iterate()
    seconds = (time.perf_counter() - begin) / (NUM_STEPS - NUM_JOBS * 4)
    for i in range(NUM_JOBS):
        backend.cancel(f"job{i}")
    return seconds, scattered


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=str(ROOT / "models" / "demo"))
    args = parser.parse_args()
    header()
    backend = make_backend(ModelConfig(path=args.model, name="bench", cache_tokens=32768))
    backend.open()
    results = {"in order": [], "shuffled": []}
    for seed in range(ROUNDS):
        for name, rng in (("in order", None), ("shuffled", random.Random(seed))):
            order_pages(backend, rng)
            results[name].append(measure(backend, seed))
    for name, rounds in results.items():
        milliseconds = [1e3 * seconds for seconds, _ in rounds]
        print(
            f"pages {name}  {statistics.mean(s for _, s in rounds):4.0%} not side by side"
            f"  decode step of {NUM_JOBS} jobs p50 {statistics.median(milliseconds):6.2f} ms"
            f"  (rounds {min(milliseconds):.2f} to {max(milliseconds):.2f})"
        )
    ratios = [b / a for (a, _), (b, _) in zip(*results.values(), strict=True)]
    print(f"shuffled / in order: {statistics.median(ratios):.3f}")
    backend.close()


if __name__ == "__main__":
    main()
