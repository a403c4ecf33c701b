#!/usr/bin/env python3
"""An engine thread without a server, for `serve.py --engine`: a line in, a line out."""

import json
import os
import pathlib
import queue
import sys
import threading
import time
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.load import Load  # noqa: E402
from switchyard import app, engine  # noqa: E402
from switchyard.engine.backends import make_backend  # noqa: E402
from switchyard.engine.links.thread import EngineThread  # noqa: E402
from switchyard.engine.messages import Loaded, Stop, Stopped, Submit  # noqa: E402

NUM_READY = 256  # jobs made before the measurement; the rest are made during it


class Alone:
    """Submits a job for each job that ends, on the engine thread itself."""

    def __init__(self, config):
        self._tokenizer = engine.Tokenizer(engine.ModelDir.read(config.path))
        self._loaded = threading.Event()
        self._link = EngineThread(config, lambda: make_backend(config), self._deliver)
        self._jobs = queue.Queue(maxsize=NUM_READY)
        self._idle = threading.Event()
        self._num_left = 0
        self._until = 0.0
        self._arrivals = []  # of each iteration: (time, tokens)
        self._link.start()
        self._loaded.wait()

    def measure(self, question):
        """New tokens a second."""
        args = types.SimpleNamespace(**question)
        stop = threading.Event()
        maker = threading.Thread(target=self._make_jobs, args=(args, stop))
        maker.start()
        while not self._jobs.full():
            time.sleep(0.01)
        self._arrivals, self._num_left = [], args.num_streams
        self._idle.clear()
        begin = time.perf_counter()
        self._until = begin + args.warm + args.seconds
        for _ in range(args.num_streams):
            self._link.send(Submit(self._jobs.get(), time.monotonic()))
        self._idle.wait()
        stop.set()
        while maker.is_alive():
            self._jobs.get()
            maker.join(0.01)
        while not self._jobs.empty():
            self._jobs.get()
        begin += args.warm
        tokens = sum(n for t, n in self._arrivals if begin <= t < self._until)
        return tokens / args.seconds

    def close(self):
        self._link.send(Stop())
        self._link.join()

    def _make_jobs(self, args, stop):
        sampling = engine.Sampling(temperature=args.temperature)
        for i, (prompt, new_tokens) in enumerate(Load.read(args).requests(args.seed)):
            if stop.is_set():
                return
            token_ids = self._tokenizer.encode(prompt, sys.maxsize)
            self._jobs.put(engine.Job(f"job{i}", token_ids, new_tokens, sampling, ignore_eos=True))

    def _deliver(self, events):
        now, tokens = time.perf_counter(), 0
        for event in events:
            match event:
                case engine.Chunk():
                    tokens += len(event.token_ids)
                case engine.Finished():
                    self._end(now)
                case Loaded():
                    self._loaded.set()
                case Stopped(error) if error is not None:
                    print(error, file=sys.stderr, flush=True)
                    os._exit(1)
                case engine.Failed():
                    print(event.error, file=sys.stderr, flush=True)
                    os._exit(1)
        self._arrivals.append((now, tokens))

    def _end(self, now):
        if now < self._until:
            self._link.send(Submit(self._jobs.get(), time.monotonic()))
            return
        self._num_left -= 1
        if not self._num_left:
            self._idle.set()


def main():
    os.environ["SWITCHYARD_MODEL"] = sys.argv[1]
    alone = Alone(app.read_settings().engine_config())
    print("{}", flush=True)
    for line in sys.stdin:
        print(json.dumps({"rate": alone.measure(json.loads(line))}), flush=True)
    alone.close()


if __name__ == "__main__":
    main()
