#!/usr/bin/env python3
"""How fast does a server stream to 1, 8, 32 clients at once?

    python benchmarks/serve.py http://127.0.0.1:8000 [--streams 1,8,32] [--bare MODEL_DIR]

Works against any server with OpenAI's /v1/completions. With --bare, the generator by itself, with
nothing around it, does the same work in turns with the server, and the last column is the share of
its speed that clients of the server get; the server must then serve that model on this machine.
"""

import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.client import percentile, post_all  # noqa: E402
from benchmarks.report import header  # noqa: E402

ROUNDS = 7  # the median counts
WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "import", "class", "def")


def prompts(count, num_words, seed):
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) for _ in range(num_words)) for _ in range(count)]


def measure(args, num_streams, seed):
    """(tokens a second, readings) of one round."""
    bodies = [
        {
            "model": args.model,
            "prompt": prompt,
            "max_tokens": args.max_tokens,
            "temperature": args.temperature,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        for prompt in prompts(num_streams, args.prompt_words, seed)
    ]
    readings = post_all(args.url, "/v1/completions", bodies)
    failed = [reading.data for reading in readings if reading.status != 200]
    if failed:
        sys.exit(f"{len(failed)} requests failed, the first with:\n{failed[0].decode()}")
    tokens = sum(reading.usage["completion_tokens"] for reading in readings)
    return tokens / max(reading.end for reading in readings), readings


def bare(args):
    """Serve rounds that stdin asks for, as `streams seed`, by the generator alone."""
    from engine.backends import make_backend
    from engine.config import ModelConfig

    config = ModelConfig(path=args.bare, name="bare", max_batch_size=args.max_batch_size)
    backend = make_backend(config)
    backend.open()
    from exllamav2.generator import ExLlamaV2DynamicJob, ExLlamaV2Sampler

    generator, tokenizer = backend._generator, backend._tokenizer
    print("ready", flush=True)
    for line in sys.stdin:
        num_streams, seed = map(int, line.split())
        for prompt in prompts(num_streams, args.prompt_words, seed):
            settings = ExLlamaV2Sampler.Settings(
                temperature=args.temperature, top_k=0, top_p=0, token_repetition_penalty=1.0
            )
            ids = tokenizer.encode(prompt, add_bos=True)
            job = ExLlamaV2DynamicJob(ids, max_new_tokens=args.max_tokens, gen_settings=settings)
            generator.enqueue(job)
        begin = time.perf_counter()
        while generator.num_remaining_jobs():
            generator.iterate()
        print(num_streams * args.max_tokens / (time.perf_counter() - begin), flush=True)
    backend.close()


class Bare:
    """`bare` in a process of its own, idle between rounds as the server is."""

    def __init__(self):
        command = [sys.executable, *sys.argv, "--bare-worker"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        while self._process.stdout.readline().strip() != "ready":  # libraries print, too
            if self._process.poll() is not None:
                sys.exit("the bare generator did not start")

    def measure(self, num_streams, seed):
        self._process.stdin.write(f"{num_streams} {seed}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def stop(self):
        self._process.stdin.close()
        self._process.wait()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("--model", help="default: the first that the server lists")
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--prompt-words", type=int, default=48)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--bare", metavar="MODEL_DIR")
    parser.add_argument("--max-batch-size", type=int, default=32, help="of the bare generator")
    parser.add_argument("--bare-worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.bare_worker:
        return bare(args)
    args.url = args.url.rstrip("/").removesuffix("/v1")
    if args.model is None:
        with urllib.request.urlopen(f"{args.url}/v1/models") as response:
            args.model = json.load(response)["data"][0]["id"]
    header()
    alone = Bare() if args.bare else None
    measure(args, 1, 0)  # warm up
    for n in map(int, args.streams.split(",")):
        rates, bare_rates, first, gaps = [], [], [], []
        for seed in range(1, ROUNDS + 1):
            rate, readings = measure(args, n, 1000 * n + seed)
            rates.append(rate)
            first += [1e3 * r.arrivals[0] for r in readings]
            for r in readings:
                gaps += [1e3 * (b - a) for a, b in zip(r.arrivals, r.arrivals[1:], strict=False)]
            if alone is not None:
                bare_rates.append(alone.measure(n, 1000 * n + seed))
        line = f"streams {n:4d}  {statistics.median(rates):8.1f} tok/s"
        for name, values in (("first token", first), ("gap", gaps)):
            p50, p99 = percentile(values, 0.5), percentile(values, 0.99)
            line += f"  {name} p50 {p50:6.1f} ms p99 {p99:6.1f} ms"
        if bare_rates:
            shares = [a / b for a, b in zip(rates, bare_rates, strict=True)]
            line += (
                f"  bare {statistics.median(bare_rates):8.1f} tok/s"
                f"  share {statistics.median(shares):.0%}"
            )
        print(line, flush=True)
    if alone is not None:
        alone.stop()


if __name__ == "__main__":
    main()
