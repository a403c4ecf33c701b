#!/usr/bin/env python3
"""How does this generator's speed compare with exllamav2's own, without HTTP?

    python benchmarks/generator.py [MODEL_DIR] [--streams 1,8,32,64,128,256] [--profile FILE]

Three ways over the same weights, in one process, in turns:
`stock`, ExLlamaV2DynamicGenerator with its own jobs and sampler; `backend`, ours, driven directly;
`engine`, ours under an engine thread, with a thread that reads all streams. All jobs come at once;
tokens a second are of the whole round, prompts included; ratios are the median of the rounds'.
With --profile, one more round of each under cProfile and, with CUDA, torch's profiler.
"""

import argparse
import contextlib
import cProfile
import io
import pathlib
import pstats
import queue
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
from switchyard.engine.backends import make_backend  # noqa: E402
from switchyard.engine.links.thread import EngineThread  # noqa: E402
from switchyard.engine.messages import Stop  # noqa: E402

TEMPERATURE, TOP_K, TOP_P = 0.8, 50, 0.8
NUM_LINES = 25  # of a profile


def prompts(num_streams, length, vocab_size, seed):
    rng = random.Random(f"{num_streams} {seed}")
    return [[rng.randrange(300, vocab_size) for _ in range(length)] for _ in range(num_streams)]


class Stock:
    """On a GPU it has weights of its own, since ours are loaded without the library's graphs."""

    def __init__(self, backend, max_batch_size):
        from exllamav2 import ExLlamaV2, ExLlamaV2Config
        from exllamav2.generator import ExLlamaV2DynamicGenerator

        model, cache = backend._loaded.model, backend._loaded.cache
        if backend._device != "cpu":
            config = ExLlamaV2Config(model.config.model_dir)
            config.max_seq_len = model.config.max_seq_len
            config.max_input_len = model.config.max_input_len
            config.max_batch_size = max_batch_size
            model = ExLlamaV2(config)
            cache = type(cache)(model, max_seq_len=cache.max_seq_len, lazy=True)
            model.load_autosplit(cache)
        self._generator = ExLlamaV2DynamicGenerator(
            model,
            cache,
            backend._tokenizer,
            max_batch_size=max_batch_size,
            max_sampling_threads=1 if backend._device == "cpu" else 16,
        )
        self._generator.warmup()

    def prepare(self):
        self._generator.reset_page_table()  # another generator has used the cache meanwhile

    def run(self, prompts, new_tokens, steps):
        """Returns the number of tokens and seconds; appends the seconds of each iteration to
        `steps`.
        """
        import torch
        from exllamav2.generator import ExLlamaV2DynamicJob, ExLlamaV2Sampler

        settings = ExLlamaV2Sampler.Settings(
            temperature=TEMPERATURE, top_k=TOP_K, top_p=TOP_P, token_repetition_penalty=1.0
        )
        start = time.perf_counter()
        for i, prompt in enumerate(prompts):
            self._generator.enqueue(
                ExLlamaV2DynamicJob(
                    torch.tensor([prompt]), new_tokens, gen_settings=settings, identifier=i
                )
            )
        tokens = 0
        while self._generator.num_remaining_jobs():
            begin = time.perf_counter()
            results = self._generator.iterate()
            steps.append(time.perf_counter() - begin)
            tokens += sum(result.get("new_tokens", 0) for result in results if result["eos"])
        return tokens, time.perf_counter() - start


def jobs(prompts, new_tokens):
    sampling = engine.Sampling(temperature=TEMPERATURE, top_k=TOP_K, top_p=TOP_P)
    return [
        engine.Job(f"job{i}", tuple(prompt), new_tokens, sampling, ignore_eos=True)
        for i, prompt in enumerate(prompts)
    ]


class Ours:
    def __init__(self, backend):
        self._backend = backend

    def prepare(self):
        self._backend.reset()

    def run(self, prompts, new_tokens, steps):
        waiting = jobs(prompts, new_tokens)[::-1]
        start, tokens = time.perf_counter(), 0
        while waiting or self._backend.num_jobs:
            begin = time.perf_counter()
            while waiting and self._backend.has_room(waiting[-1]):
                self._backend.enqueue(waiting.pop())
            events = self._backend.iterate()
            steps.append(time.perf_counter() - begin)
            for event in events:
                if isinstance(event, engine.Failed):
                    sys.exit(str(event.error))
                tokens += event.new_tokens if isinstance(event, engine.Finished) else 0
        return tokens, time.perf_counter() - start


class Here(EngineThread):
    """An engine thread that is the calling thread of `run`, which has also opened the backend."""

    def start(self):
        self._watchdog.start()

    def run(self):
        self._run()
        self._watchdog.join()


class Opened:
    """A backend that is already open, and stays open."""

    def __init__(self, backend, info, steps):
        self._backend = backend
        self._info = info
        self._steps = steps

    def __getattr__(self, name):
        return getattr(self._backend, name)

    def open(self):
        return self._info

    def iterate(self):
        begin = time.perf_counter()
        events = self._backend.iterate()
        self._steps.append(time.perf_counter() - begin)
        return events

    def close(self):
        pass


class Whole(Ours):
    def __init__(self, backend, info, config):
        super().__init__(backend)
        self._info = info
        self._config = config

    def run(self, prompts, new_tokens, steps):
        opened = Opened(self._backend, self._info, steps)
        links = []

        def make_link(deliver):
            links.append(Here(self._config, lambda: opened, deliver))
            return links[0]

        model = engine.Engine(self._config, make_link)
        model.start()
        found = []
        work = jobs(prompts, new_tokens)
        reader = threading.Thread(target=lambda: found.append(read_all(model, work)), name="reader")
        reader.start()
        links[0].run()
        reader.join()
        return found[0]


def read_all(model, work):
    model.wait_until_loaded()
    woken = queue.SimpleQueue()
    start = time.perf_counter()
    for job in work:
        box = []
        stream = model.submit([job], lambda box=box: woken.put(box))
        box.append(stream)
    tokens, num_left = 0, len(work)
    while num_left:
        for event in woken.get()[0].take(timeout=0):
            if isinstance(event, engine.Failed):
                sys.exit(str(event.error))
            if isinstance(event, engine.Finished):
                tokens += event.new_tokens
                num_left -= 1
    seconds = time.perf_counter() - start
    model._link.send(Stop())
    return tokens, seconds


def measure(way, args, num_streams, vocab_size, seed):
    """(tokens a second, seconds of the iterations)."""
    steps = []
    work = prompts(num_streams, args.prompt_tokens, vocab_size, seed)
    way.prepare()
    tokens, seconds = way.run(work, args.new_tokens, steps)
    assert tokens == num_streams * args.new_tokens, tokens
    return tokens / seconds, steps


def profile(name, way, args, num_streams, vocab_size):
    """The profile, as text."""
    import torch

    out = io.StringIO()
    with contextlib.ExitStack() as stack:
        device = None
        if torch.cuda.is_available():
            activities = [torch.profiler.ProfilerActivity.CUDA]
            device = stack.enter_context(torch.profiler.profile(activities=activities))
        with cProfile.Profile() as calls:
            rate, steps = measure(way, args, num_streams, vocab_size, -1)
    print(
        f"== {name}, {num_streams} streams: {len(steps)} iterations, {sum(steps):.2f} s in them,"
        f" {rate:.0f} tok/s under the profiler",
        file=out,
    )
    if device is not None:
        averages = device.key_averages()
        print(averages.table(sort_by="self_device_time_total", row_limit=NUM_LINES), file=out)
    stats = pstats.Stats(calls, stream=out).strip_dirs()
    stats.sort_stats("tottime").print_stats(NUM_LINES)
    stats.sort_stats("cumulative").print_stats(NUM_LINES)
    return out.getvalue()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=str(ROOT / "models" / "demo"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--streams", default="1,8,32,64,128,256")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--cache-tokens", type=int, default=131072)
    parser.add_argument("--cache-mode", default="float16")
    parser.add_argument("--rounds", type=int, default=3, help="the median counts")
    parser.add_argument("--ways", default="stock,backend,engine")
    parser.add_argument("--profile", metavar="FILE")
    args = parser.parse_args()
    sizes = [int(n) for n in args.streams.split(",")]
    header()
    config = engine.ModelConfig(
        args.model,
        "bench",
        args.device,
        cache_mode=(args.cache_mode,),
        cache_tokens=args.cache_tokens,
        max_batch_size=max(sizes),
        hang_timeout=600.0,
        hang_exit=600.0,
    )
    backend = make_backend(config)
    info = backend.open()
    ways = {
        "stock": Stock(backend, max(sizes)),
        "backend": Ours(backend),
        "engine": Whole(backend, info, config),
    }
    ways = {name: ways[name] for name in args.ways.split(",")}
    for way in ways.values():
        measure(way, args, 1, info.vocab_size, "warm")
    for n in sizes:
        found = {name: [] for name in ways}
        for seed in range(args.rounds):
            for name, way in ways.items():
                found[name].append(measure(way, args, n, info.vocab_size, seed))
        for name, rounds in found.items():
            steps = [1e3 * seconds for _, steps in rounds for seconds in steps]
            ratios = [a / b for (a, _), (b, _) in zip(rounds, found[next(iter(ways))], strict=True)]
            print(
                f"streams {n:4d}  {name:8}{statistics.median(r for r, _ in rounds):9.1f} tok/s"
                f"  iterate p50 {percentile(steps, 0.5):7.2f} ms"
                f" p99 {percentile(steps, 0.99):7.2f} ms  ratio {statistics.median(ratios):5.2f}",
                flush=True,
            )
    if args.profile:
        texts = [
            profile(name, way, args, n, info.vocab_size)
            for n in sizes
            for name, way in ways.items()
        ]
        with open(args.profile, "w") as file, contextlib.redirect_stdout(file):
            header()
            print("\n".join(texts))
    backend.close()


if __name__ == "__main__":
    main()
