#!/usr/bin/env python3
"""What does the loss of one of two replicas cost, and what do two bring?

    python benchmarks/replicas.py [--streams 64] [--rounds 5] [--model DIRECTORY --gpus 0,1]

Without a model: replicas of an engine's own, then hosts and front ends of an engine that servers
share, over a backend that has a token for every job each 20 ms. `told`: seconds from SIGKILL, or
from SIGSTOP, to the error of the first stream that had begun; SIGSTOP's less `silence_timeout`. Of
a front end: to the first token of another's that waited for the places of its streams. `lost`:
requests that had not begun and did not end whole, of so many. With a model: tokens a second of one
replica and of one on each GPU, twice the streams, in turns.
"""

import argparse
import functools
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

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
LONG, SHORT = 100_000, 10  # tokens
WAITING = 32  # requests that have not begun


class RecoveringBackend(TokenBackend):
    def reset(self):
        self._jobs.clear()

    rebuild = reload = reset


def make_backend(*_):
    return RecoveringBackend(TICK)


def make_job(identifier, num_tokens, prompt=(1,)):
    return engine.Job(identifier, prompt, num_tokens, ignore_eos=True)


def open_scripted(num_streams):
    config = ModelConfig(
        MODEL,
        "bench",
        replicas=2,
        max_batch_size=num_streams // 2,
        max_pending=WAITING,
        silence_timeout=SILENCE,
    )
    # By its module's name: a function of the main one can't cross.
    from benchmarks import replicas

    make = functools.partial(PipeLink, config, replicas.make_backend)
    model = engine.Engine(config, functools.partial(ReplicaLink, config, [((), make)] * 2))
    model.start()
    return model


def wait_until_ready(model):
    number = len(model.config.at) or model.config.replicas
    while [one.status for one in model.standing.replicas] != ["ready"] * number:
        time.sleep(0.01)


def shared_config(at, num_places):
    return ModelConfig(
        MODEL,
        "bench",
        link="socket",
        at=tuple(at),
        max_batch_size=num_places,
        max_pending=WAITING,
        silence_timeout=SILENCE,
    )


class Process:
    """Of one of this module's functions, which is called with these arguments."""

    def __init__(self, function, *arguments):
        code = f"from benchmarks.replicas import {function}; {function}{arguments!r}"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE
        )
        self.pid = self._process.pid
        self._process.stdout.readline()  # it is ready

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()  # also one that is stopped
        self._process.communicate()


def run_host(at, num_places):
    import switchyard.engine.models.opening as opening

    opening.make_backend = make_backend
    host = opening.open_host(opening.own_config(shared_config([at], num_places)), at)
    host.start()
    print("ready", flush=True)
    while not host.wait(60):
        pass


def run_front_end(at, num_streams):
    """A server that takes all places, and reads."""
    model = open_shared([at], num_streams)
    begun = threading.Semaphore(0)
    for i in range(num_streams):
        Reader(model, make_job(f"theirs-{i}", LONG), begun)
    for _ in range(num_streams):
        begun.acquire()
    print("ready", flush=True)


def open_shared(at, num_places):
    model = engine.open_engine(shared_config(at, num_places))
    model.start()
    wait_until_ready(model)
    return model


class Reader(threading.Thread):
    """Reads one stream to its end."""

    def __init__(self, model, job, begun=None):
        super().__init__()
        self._stream = model.submit([job])
        self._begun = begun
        self.end = self.ended = None
        self.start()

    def run(self):
        while not self._stream.is_finished:
            for event in self._stream.take():
                if isinstance(event, Chunk) and self._begun is not None:
                    self._begun.release()
                    self._begun = None
                if isinstance(event, Finished | Failed):
                    self.end, self.ended = event, time.monotonic()

    def close(self):
        self._stream.close()
        self.join()


def lose_replica(number, num_streams):
    """Seconds until the loss is told, answers that ended with it, requests that were lost."""
    model = open_scripted(num_streams)
    wait_until_ready(model)
    return lose(model, number, num_streams)


def lose_host(number, num_streams):
    with tempfile.TemporaryDirectory() as directory:
        at = [f"unix:{directory}/{name}.sock" for name in "ab"]
        with (
            Process("run_host", at[0], num_streams // 2),
            Process("run_host", at[1], num_streams // 2),
        ):
            return lose(open_shared(at, num_streams // 2), number, num_streams)


def lose_front_end(number, num_streams):
    with tempfile.TemporaryDirectory() as directory:
        at = f"unix:{directory}/engine.sock"
        with Process("run_host", at, num_streams), Process("run_front_end", at, num_streams) as one:
            model = open_shared([at], num_streams)
            first = threading.Semaphore(0)
            waiting = [Reader(model, make_job(f"own-{i}", SHORT), first) for i in range(WAITING)]
            while model.num_jobs < WAITING or first.acquire(timeout=0.5):
                pass  # until all wait
            before = time.monotonic()
            os.kill(one.pid, number)
            first.acquire()
            seconds = time.monotonic() - before
            for reader in waiting:
                reader.join()
            lost = sum(not isinstance(reader.end, Finished) for reader in waiting)
            model.close(timeout=60)
            return seconds, None, lost


def lose(model, number, num_streams):
    begun = threading.Semaphore(0)
    long = [Reader(model, make_job(f"long-{i}", LONG), begun) for i in range(num_streams)]
    for _ in long:
        begun.acquire()
    waiting = [Reader(model, make_job(f"waiting-{i}", SHORT)) for i in range(WAITING)]
    victim = model.standing.replicas[0].pid
    before = time.monotonic()
    os.kill(victim, number)
    while not (ended := [reader.ended for reader in long if reader.ended is not None]):
        time.sleep(0.001)
    time.sleep(0.1)
    failed = sum(reader.end is not None for reader in long)
    for reader in long:
        if reader.end is None:
            model.cancel(f"long-{long.index(reader)}")
    for reader in [*long, *waiting]:
        reader.join()
    lost = sum(not isinstance(reader.end, Finished) for reader in waiting)
    if number == signal.SIGSTOP:
        os.kill(victim, signal.SIGCONT)
    model.close(timeout=60)
    return min(ended) - before, failed, lost


def rate(model_path, gpus, num_streams, num_tokens=256):
    """Tokens a second, of so many streams with a replica on each GPU."""
    config = ModelConfig(
        model_path,
        "bench",
        link="process",
        gpus=gpus,
        replicas=len(gpus) or 1,
        max_batch_size=num_streams,
        cache_tokens=max(num_streams * 512, 16384),
    )
    model = engine.open_engine(config)
    model.start()
    if not model.wait_until_loaded():
        sys.exit(str(model.error))
    wait_until_ready(model)
    try:
        for number in (2, num_streams * config.replicas):  # the first to warm up
            begin = time.monotonic()
            readers = [
                Reader(model, make_job(f"{number}-{i}", num_tokens, (i + 1, 2, 3)))
                for i in range(number)
            ]
            for reader in readers:
                reader.join()
        return number * num_tokens / (time.monotonic() - begin)
    finally:
        model.close(timeout=60)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model")
    parser.add_argument("--gpus", default="")
    args = parser.parse_args()
    header()
    if args.model is not None:
        gpus = tuple(map(int, args.gpus.split(","))) if args.gpus else ()
        for _ in range(args.rounds):
            one, all_of_them = (rate(args.model, part, args.streams) for part in (gpus[:1], gpus))
            print(f"one {one:8.0f} tok/s  {len(gpus)} {all_of_them:8.0f}  {all_of_them / one:.3f}")
        return
    for lose_one in (lose_replica, lose_host, lose_front_end):
        for number, grace in ((signal.SIGKILL, 0.0), (signal.SIGSTOP, SILENCE)):
            found = [lose_one(number, args.streams) for _ in range(args.rounds)]
            what = f"{lose_one.__name__.removeprefix('lose_')} {number.name}"
            tell(what, [(seconds - grace, *rest) for seconds, *rest in found], args.streams)


def tell(what, found, num_streams):
    told = [1e3 * seconds for seconds, *_ in found]
    ends = [failed for _, failed, _ in found if failed is not None]
    ended = f"  ended {statistics.median(ends)} of {num_streams}" if ends else ""
    print(
        f"{what:<17}  told p50 {statistics.median(told):.0f} ms, at most {max(told):.0f}{ended}"
        f"  lost {sum(lost for *_, lost in found)} of {WAITING * len(found)}",
        flush=True,
    )


if __name__ == "__main__":
    main()
