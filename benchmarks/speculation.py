#!/usr/bin/env python3
"""How much faster do guessed tokens make greedy texts?

    python benchmarks/speculation.py [MODEL_DIR] [--draft MODEL_DIR] [--streams 1,8]

Engine only, in turns, each on its own backend: without drafts, with n-grams of the text so
far, and with --draft a draft model. Five kinds of text, asked for in ChatML. `same`: texts equal to
those without drafts.
"""

import argparse
import itertools
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
from switchyard.engine.model.model_dir import ModelDir  # noqa: E402
from switchyard.engine.model.tokenizer import Tokenizer  # noqa: E402
from switchyard.engine.sampling import Sampling  # noqa: E402

ANIMALS = ["dragon", "fox", "whale", "robot", "crow", "pirate", "ghost", "horse"]
PROSE = (
    "The {0} left the harbour before the sun was up. Nobody had seen it come, and nobody saw it go"
    " but the keeper of the light, who wrote the hour into his book, as he did with every ship. It"
    " took the northern way, past the rocks, where the water is never still. In the evening it came"
    " back with {1} stones, one for each house, and a letter that could not be read."
)
CODE = """def {0}_total(rows):
    total = 0
    for row in rows:
        if row.kind == "{0}" and row.count > {1}:
            total += row.count
        elif row.kind == "other":
            total -= row.count
    return total
"""
KINDS = {
    "story": "Tell me a long story about a {0} and {1} children.",
    "facts": "What is a {0}? Explain it to {1} children, in detail.",
    "copy": "Repeat this text word for word:\n\n" + PROSE,
    "code": "Repeat this code, with a comment at its beginning:\n\n```python\n" + CODE + "```",
    "list": "Write the numbers from {1} to 90, one on each line. No {0}s.",
}
GREEDY = Sampling(temperature=0.0)


def prompts(tokenizer, kind, number, seed):
    asked = [KINDS[kind].format(ANIMALS[i % 8], 3 + i + seed) for i in range(number)]
    turns = [f"<|im_start|>user\n{one}<|im_end|>\n<|im_start|>assistant\n" for one in asked]
    return [tokenizer.encode_template(text, 4096) for text in turns]


class Way:
    """One kind of drafts. Its backend is open during its measurement."""

    def __init__(self, args, **config):
        self._new_tokens = args.new_tokens
        self._tokenizer = Tokenizer(ModelDir.read(args.model))
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

    def run(self, kind, num_streams, seed):
        """Returns (tokens a second, token ids of each text, draft tokens, accepted ones)."""
        self.backend.reset()
        work = prompts(self._tokenizer, kind, num_streams, seed)
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
        way.run("copy", 1, 0)
    for n, kind in itertools.product(args.streams, KINDS):
        found = {name: [] for name in ways}
        for seed in range(args.rounds):
            for name, way in ways.items():
                found[name].append(way.run(kind, n, seed))
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
                f"streams {n:3d}  {kind:6} {name:7}"
                f"{statistics.median(r[0] for r in rounds):9.1f} tok/s"
                f"  ratio {statistics.median(ratios):5.2f}  accepted {right} of {guessed}"
                f"  same {same} of {n * args.rounds}",
                flush=True,
            )
    for way in ways.values():
        way.backend.close()


if __name__ == "__main__":
    main()
