#!/usr/bin/env python3
"""What do 32 constrained jobs cost ten free ones beside them?

    python benchmarks/constraints.py [MODEL_DIR] [--device cpu] [--others 32] [--rounds 6]

The gap between two tokens of ten free streams, by the engine's events (no HTTP): beside 32 other
free streams, and beside 32 with a JSON schema; in turns. Each round gives mean, median and 99th
percentile. The output is the median over all rounds, and the median of the ratios of pairs of
rounds; `rate` is the free streams' tokens a second. With --cpu-time the clock counts the engine
thread's CPU time only.
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
from benchmarks.prefill import Arrivals, prompt  # noqa: E402
from benchmarks.report import header  # noqa: E402
from switchyard import engine  # noqa: E402

NUM_FREE = 10
NEW_TOKENS = 300
WARM_UP = 20  # tokens of each stream before the gaps count
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "email": {"type": "string", "format": "email"},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["new", "old", "other"]}, "maxItems": 5},
        "notes": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["name", "email", "age", "tags", "notes"],
    "additionalProperties": False,
}
# A minimum of items that no text reaches during the measurement.
SCHEMA = {"type": "array", "items": PERSON, "minItems": 1000}


def measure(model, arrivals, num_others, constraint, seed):
    """Gaps between the tokens of the free streams, in ms."""
    rng = random.Random(seed)
    sampling = engine.Sampling(temperature=1.0, seed=seed)
    free = [f"free{i}" for i in range(NUM_FREE)]
    arrivals.times = {name: [] for name in free}
    jobs = [
        engine.Job(name, prompt(rng, 64), NEW_TOKENS, sampling, ignore_eos=True) for name in free
    ]
    for i in range(num_others):
        jobs.append(
            engine.Job(
                f"other{i}",
                prompt(rng, 64),
                NEW_TOKENS,
                sampling,
                ignore_eos=constraint is None,
                constraint=constraint,
            )
        )
    stream = model.submit(jobs)
    num_ended = 0
    while not stream.is_finished:
        for event in stream.take():
            if isinstance(event, engine.Failed):
                sys.exit(str(event.error))
            num_ended += isinstance(event, engine.Finished) and event.new_tokens < NEW_TOKENS
    if num_ended:
        sys.exit(f"{num_ended} ended too soon")
    return [
        1e3 * (b - a)
        for times in arrivals.times.values()
        for (_, a), (_, b) in itertools.pairwise(times[WARM_UP:])
    ]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=str(ROOT / "models" / "demo"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--others", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--cpu-time", action="store_true")
    args = parser.parse_args()
    header()
    config = engine.ModelConfig(
        args.model,
        "bench",
        args.device,
        "thread",
        cache_tokens=512 * (NUM_FREE + args.others),
        max_batch_size=NUM_FREE + args.others,
    )
    model = engine.open_engine(config)
    model.start()
    if not model.wait_until_loaded():
        sys.exit(str(model.error))
    arrivals = Arrivals(model, time.thread_time if args.cpu_time else time.perf_counter)
    constraint = engine.constraints.json_schema(SCHEMA)
    rounds = {"free": [], "constrained": []}
    for seed in range(args.rounds):
        for name, form in (("free", None), ("constrained", constraint)):
            gaps = measure(model, arrivals, args.others, form, seed)
            rounds[name].append(
                (statistics.mean(gaps), statistics.median(gaps), percentile(gaps, 0.99))
            )
    model.close()
    for name, numbers in rounds.items():
        mean, p50, p99 = map(statistics.median, zip(*numbers, strict=True))
        shown = f"gap mean {mean:5.2f}  p50 {p50:5.2f}  p99 {p99:5.2f} ms"
        print(f"{args.others} others {name:11}  {shown}")
    ratios = [
        [b / a for a, b in zip(one, other, strict=True)]
        for one, other in zip(rounds["free"], rounds["constrained"], strict=True)
    ]
    mean, p50, p99 = map(statistics.median, zip(*ratios, strict=True))
    print(f"constrained / free      gap mean {mean:5.2f}  p50 {p50:5.2f}  p99 {p99:5.2f}")
    print(f"constrained / free      rate {1 / mean:.3f}")


if __name__ == "__main__":
    main()
