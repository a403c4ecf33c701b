#!/usr/bin/env python3
"""How many chats are served at once, and how fast, when clients ask for more tokens than they use?

    python benchmarks/chats.py MODEL_DIR [--max-tokens 8000,exact] [--clients 64] [--seconds 15]

A closed loop over the backend, without HTTP. Prompts and answers are lognormal (medians 200 and 150
tokens). A client asks for `max_tokens`, or for the length of its answer (`exact`), and cancels at
that length, as if the model had ended. First token: from the request on. The first 3 seconds don't
count.
"""

import argparse
import collections
import math
import pathlib
import random
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.client import percentile  # noqa: E402
from benchmarks.report import header  # noqa: E402
from switchyard import engine  # noqa: E402
from switchyard.engine.backends import make_backend  # noqa: E402

WARM_UP = 3.0  # seconds
SAMPLING = engine.Sampling(temperature=0.8, top_k=50)


class Clients:
    """Each has one request at a time."""

    def __init__(self, number, max_tokens, info):
        self._rng = random.Random(7)
        self._max_tokens = max_tokens
        self._info = info
        self.waiting = collections.deque()
        self.begun, self.lengths, self.got = {}, {}, {}
        for client in range(number):
            self.ask(str(client))

    def _length(self, median, deviation, most):
        return min(max(int(self._rng.lognormvariate(math.log(median), deviation)), 8), most)

    def ask(self, client):
        prompt, length = self._length(200, 0.9, 2000), self._length(150, 0.8, 1500)
        most = self._info.max_seq_len - prompt
        asked = length if self._max_tokens == "exact" else min(int(self._max_tokens), most)
        token_ids = (self._rng.randrange(300, self._info.vocab_size) for _ in range(prompt))
        name = f"{client}-{len(self.begun)}"
        job = engine.Job(name, tuple(token_ids), asked, SAMPLING, client=client, ignore_eos=True)
        self.waiting.append(job)
        self.begun[name], self.lengths[name] = time.perf_counter(), length

    def end(self, name):
        self.got.pop(name, None)
        self.ask(name.partition("-")[0])


def measure(backend, info, args, max_tokens):
    backend.reset()
    clients = Clients(args.clients, max_tokens, info)
    first_tokens, num_tokens, num_ended, most_at_once = [], 0, 0, 0
    warm = time.perf_counter() + WARM_UP
    before = backend.work.preempted if hasattr(backend.work, "preempted") else 0
    while (now := time.perf_counter()) < warm + args.seconds:
        while clients.waiting and backend.has_room(clients.waiting[0]):
            backend.enqueue(clients.waiting.popleft())
        events = backend.iterate()
        most_at_once = max(most_at_once, backend.num_jobs)
        now = time.perf_counter()
        for event in events:
            name = event.identifier
            if isinstance(event, engine.Failed):
                sys.exit(str(event.error))
            if isinstance(event, engine.Finished):
                clients.end(name)
                num_ended += 1
            if not isinstance(event, engine.Chunk):
                continue
            if name not in clients.got and now > warm:
                first_tokens.append(now - clients.begun[name])
            clients.got[name] = clients.got.get(name, 0) + len(event.token_ids)
            num_tokens += len(event.token_ids) * (now > warm)
        for name in [n for n, got in clients.got.items() if got >= clients.lengths[n]]:
            if max_tokens != "exact":
                backend.cancel(name)
                clients.end(name)
                num_ended += 1
    parked = backend.work.preempted - before if hasattr(backend.work, "preempted") else 0
    first_tokens.sort()
    print(
        f"{max_tokens:>10} {num_tokens / args.seconds:8.0f} {most_at_once:8}"
        f" {percentile(first_tokens, 0.5):8.2f} {percentile(first_tokens, 0.99):8.2f}"
        f" {num_ended:8} {parked:8}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--max-tokens", default="8000,exact")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--cache-tokens", type=int, default=65536)
    args = parser.parse_args()
    header()
    config = engine.ModelConfig(
        args.model, "name", max_batch_size=32, cache_tokens=args.cache_tokens
    )
    backend = make_backend(config)
    info = backend.open()
    print("max_tokens    tok/s  at once  TTFT p50  TTFT p99    ended   parked")
    for max_tokens in args.max_tokens.split(","):
        measure(backend, info, args, max_tokens)
    backend.close()


if __name__ == "__main__":
    main()
