#!/usr/bin/env python3
"""How much faster do guessed tokens make greedy texts?

    python benchmarks/speculation.py [MODEL_DIR] [--draft MODEL_DIR] [--streams 1,8]

Engine only, in turns, each on a backend of its own: without drafts, with n-grams of the text so
far, and with --draft a draft model. A greedy text likes to repeat itself, which suits n-grams.
`same`: texts equal to those without drafts.
"""

import argparse
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.report import header  # noqa: E402
from switchyard.engine.backends import make_backend  # noqa: E402
from switchyard.engine.config import ModelConfig  # noqa: E402
from switchyard.engine.job import Job  # noqa: E402
from switchyard.engine.messages import Chunk, Failed, Finished  # noqa: E402
from switchyard.engine.sampling import Sampling  # noqa: E402

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
GREEDY = Sampling(temperature=0.0)


def prompts(backend, number, seed):
    encode = backend._tokenizer.tokenizer_model.hf_tokenizer.encode
    texts = [f"Count {' '.join(WORDS[: 3 + i % 7])} and again, {seed + i}:" for i in range(number)]
    return [tuple(encode(text).ids) for text in texts]


class Way:
    """One kind of drafts. Its backend is open during its measurement."""

    def __init__(self, args, **config):
        self._new_tokens = args.new_tokens
        self.backend = make_backend(
            ModelConfig(
                args.model,
                "bench",
                args.device,
                cache_tokens=args.cache_tokens,
                max_batch_size=max(args.streams),
                **config,
            )
        )
        self.backend.open()

    def run(self, num_streams, seed):
        """Returns (tokens a second, token ids of each text, draft tokens, accepted ones)."""
        self.backend.reset()
        work = prompts(self.backend, num_streams, seed)
        jobs = [
            Job(str(i), ids, self._new_tokens, GREEDY, ignore_eos=True)
            for i, ids in enumerate(work)
        ]
        texts = {job.identifier: [] for job in jobs}
        guessed = right = num_tokens = 0
        waiting, start = jobs[::-1], time.perf_counter()
        while waiting or self.backend.num_jobs:
            while waiting and self.backend.has_room(waiting[-1]):
                self.backend.enqueue(waiting.pop())
            for event in self.backend.iterate():
                if isinstance(event, Failed):
                    sys.exit(str(event.error))
                if isinstance(event, Chunk):
                    texts[event.identifier] += event.token_ids
                if isinstance(event, Finished):
                    num_tokens += event.new_tokens
                    guessed += event.draft_tokens
                    right += event.accepted_tokens
        rate = num_tokens / (time.perf_counter() - start)
        return rate, list(texts.values()), guessed, right


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=str(ROOT / "models" / "demo"))
    parser.add_argument("--draft", help="model that guesses, of the same vocabulary")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--streams", default="1,8", type=lambda s: [int(n) for n in s.split(",")])
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--cache-tokens", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=3, help="the median counts")
    args = parser.parse_args()
    header()
    ways = {"none": Way(args), "n-gram": Way(args, ngram_draft=True)}
    if args.draft:
        ways["draft"] = Way(args, draft_model=args.draft)
    for way in ways.values():
        way.run(1, 0)
    for n in args.streams:
        found = {name: [] for name in ways}
        for seed in range(args.rounds):
            for name, way in ways.items():
                found[name].append(way.run(n, 100 * seed))
        for name, rounds in found.items():
            plain = found["none"]
            ratios = [a[0] / b[0] for a, b in zip(rounds, plain, strict=True)]
            same = sum(
                text == other
                for a, b in zip(rounds, plain, strict=True)
                for text, other in zip(a[1], b[1], strict=True)
            )
            guessed, right = sum(r[2] for r in rounds), sum(r[3] for r in rounds)
            print(
                f"streams {n:3d}  {name:7}{statistics.median(r[0] for r in rounds):9.1f} tok/s"
                f"  ratio {statistics.median(ratios):5.2f}  accepted {right} of {guessed}"
                f"  same {same} of {n * args.rounds}",
                flush=True,
            )
    for way in ways.values():
        way.backend.close()


if __name__ == "__main__":
    main()
