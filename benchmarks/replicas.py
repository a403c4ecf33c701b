#!/usr/bin/env python3
"""What do replicas deliver, and what does the loss of one cost?

    python benchmarks/replicas.py [--streams 64] [--rounds 5] [--replicas 1,2]
        [--model DIRECTORY --gpus 0,1]

Without a model: processes over a backend with a token for every job each 20 ms; with one, a replica
on each GPU. `told`: seconds from SIGKILL or SIGSTOP to the error of the first stream that had
begun; for SIGSTOP less `silence_timeout`. `lost`: requests that had not begun and did not end
completely. Of a steady state: tokens a second, CPU of this process, which is the front end, and how
many more streams the fullest replica has than the mean. ceiling.py measures over HTTP.
"""

import argparse
import functools
import os
import pathlib
import signal
import statistics
import sys
import threading
import time
from dataclasses import replace

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.report import header  # noqa: E402
from benchmarks.routing import MODEL, TICK, TokenBackend  # noqa: E402
from switchyard import engine  # noqa: E402
from switchyard.engine.config import ModelConfig  # noqa: E402
from switchyard.engine.links.pipe import PipeLink  # noqa: E402
from switchyard.engine.links.replicas import ReplicaLink  # noqa: E402
from switchyard.engine.messages import Chunk, Failed, Finished  # noqa: E402

SILENCE = 2.0  # seconds
STEADY = 4.0  # seconds
LONG, SHORT = 1500, 10  # tokens
WAITING = 32  # requests that have not begun


class RecoveringBackend(TokenBackend):
    def reset(self):
        self._jobs.clear()

    rebuild = reload = reset


def make_backend(*_):
    return RecoveringBackend(TICK)


def make_job(identifier, num_tokens, prompt=(1,)):
    return engine.Job(identifier, prompt, num_tokens, ignore_eos=True)


def open_model(args, num_replicas):
    """The engine, once all its replicas are ready."""
    config = ModelConfig(
        args.model or MODEL,
        "bench",
        link="process",
        replicas=num_replicas,
        max_batch_size=-(-args.streams // num_replicas),
        max_pending=WAITING,
        silence_timeout=SILENCE,
    )
    if args.model:
        gpus = tuple(map(int, args.gpus.split(",")))[:num_replicas]
        tokens = config.max_batch_size * 2048
        model = engine.open_engine(replace(config, gpus=gpus, cache_tokens=tokens))
    else:
        # By its module's name: a function of the main module can't be pickled.
        from benchmarks import replicas

        make = functools.partial(PipeLink, config, replicas.make_backend)
        link = functools.partial(ReplicaLink, config, [((), make)] * num_replicas)
        model = engine.Engine(config, link)
    model.start()
    if not model.wait_until_loaded():
        sys.exit(str(model.error))
    wait_until_ready(model)
    return model


def wait_until_ready(model):
    while [one.status for one in model.standing.replicas] != ["ready"] * model.config.replicas:
        time.sleep(0.01)


class Reader(threading.Thread):
    """Reads one stream to its end."""

    def __init__(self, model, job, begun=None):
        super().__init__()
        self._stream = model.submit([job])
        self._begun = begun
        self.end = self.ended = None
        self.num_tokens = 0
        self.start()

    def run(self):
        while not self._stream.is_finished:
            for event in self._stream.take():
                if isinstance(event, Chunk):
                    self.num_tokens += len(event.token_ids)
                    if self._begun is not None:
                        self._begun.release()
                        self._begun = None
                if isinstance(event, Finished | Failed):
                    self.end, self.ended = event, time.monotonic()

    def close(self):
        self._stream.close()
        self.join()


def begin(args, num_replicas):
    """The engine, and its streams, each with a token."""
    model = open_model(args, num_replicas)
    begun = threading.Semaphore(0)
    long = [Reader(model, make_job(f"long-{i}", LONG), begun) for i in range(args.streams)]
    for _ in long:
        begun.acquire()
    return model, long


def keep(args, num_replicas):
    """Returns tokens a second, CPU seconds of the front end for a token, and the jobs of the
    fullest replica relative to the mean.
    """
    model, long = begin(args, num_replicas)

    def now():
        return time.monotonic(), time.process_time(), sum(one.num_tokens for one in long)

    before = now()
    time.sleep(STEADY)
    seconds, cpu, num_tokens = (b - a for a, b in zip(before, now(), strict=True))
    jobs = [one.num_jobs for one in model.standing.replicas] or [args.streams]
    for i in range(args.streams):
        model.cancel(f"long-{i}")
    for reader in long:
        reader.join()
    model.close(timeout=60)
    return num_tokens / seconds, cpu / num_tokens, max(jobs) / statistics.mean(jobs)


def lose(args, number, num_replicas):
    """Returns seconds until the loss is reported, answers it ended, and requests it lost."""
    model, long = begin(args, num_replicas)
    waiting = [Reader(model, make_job(f"waiting-{i}", SHORT)) for i in range(WAITING)]
    victim = model.standing.replicas[0].pid
    before = time.monotonic()
    os.kill(victim, number)
    while not (ended := [reader.ended for reader in long if reader.ended is not None]):
        time.sleep(0.001)
    time.sleep(0.1)
    failed = sum(isinstance(reader.end, Failed) for reader in long)
    for i, reader in enumerate(long):
        if reader.end is None:
            model.cancel(f"long-{i}")
    if number == signal.SIGSTOP and num_replicas == 1:
        os.kill(victim, signal.SIGCONT)  # no other replica can take the waiting jobs
    for reader in [*long, *waiting]:
        reader.join()
    lost = sum(not isinstance(reader.end, Finished) for reader in waiting)
    if number == signal.SIGSTOP:
        os.kill(victim, signal.SIGCONT)
    model.close(timeout=60)
    return min(ended) - before, failed, lost


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--replicas", default="2,1", type=lambda s: [int(n) for n in s.split(",")])
    parser.add_argument("--model")
    parser.add_argument("--gpus", default="0,1")
    args = parser.parse_args()
    header()
    for num_replicas in args.replicas:
        rate, cpu, spread = keep(args, num_replicas)
        print(
            f"steady with {num_replicas}  {rate:.0f} tokens/s  front end {1e6 * cpu:.1f} us a token"
            f"  fullest {spread:.2f} of the mean",
            flush=True,
        )
    for number, grace in ((signal.SIGKILL, 0.0), (signal.SIGSTOP, SILENCE)):
        for num_replicas in args.replicas:
            found = [lose(args, number, num_replicas) for _ in range(args.rounds)]
            told = [seconds - grace for seconds, _, _ in found]
            ended = statistics.median(failed for _, failed, _ in found)
            print(
                f"{number.name} of one of {num_replicas}"
                f"  told p50 {1e3 * statistics.median(told):.0f} ms, at most {1e3 * max(told):.0f}"
                f"  ended {ended} of {args.streams}"
                f"  lost {sum(lost for *_, lost in found)} of {WAITING * args.rounds}",
                flush=True,
            )


if __name__ == "__main__":
    main()
