#!/usr/bin/env python3
"""What does it cost to bring a token from the engine thread to its client?

    python benchmarks/routing.py engine [--streams 1,16,64,256]
    python benchmarks/routing.py http   [--streams 1,16,64,256]
    python benchmarks/routing.py memory [--requests 10000]
    python benchmarks/routing.py stored [--requests 20000]

`engine`: the backend has a token for every active job at once; Engine and Stream bring it to a
thread for each stream. `http`: the backend has a token for every job each 20 ms; gunicorn and its
sockets bring it to a client in another process. `work`: the engine thread's time between two
iterations. `lateness`: the delay of an iteration's begin. `memory`: resident size of the server
over many short requests. `stored`: likewise over conversations that the server keeps.
"""

import argparse
import concurrent.futures
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.client import percentile, post_all  # noqa: E402
from benchmarks.report import header  # noqa: E402
from switchyard import engine  # noqa: E402
from switchyard.engine.config import ModelConfig  # noqa: E402
from switchyard.engine.links.thread import EngineThread  # noqa: E402
from switchyard.engine.messages import Chunk, Finished, ModelInfo, Started  # noqa: E402
from switchyard.engine.stats import Occupancy, Work  # noqa: E402

MODEL = str(ROOT / "models" / "demo")  # only its tokenizer is used
MAX_JOBS = 256
TICK = 0.02  # seconds
TURNS = 3  # of a stored conversation


class TokenBackend:
    """A backend with a token for every active job in each iteration. `tick`: seconds between
    iterations, or none.
    """

    def __init__(self, tick=0.0):
        self.lateness = []  # seconds of delay of each iteration
        self.busy = []  # seconds of the engine thread's work between iterations
        self.work = Work()
        self._tick = tick
        self._next = 0.0
        self._returned = 0.0
        self._jobs = {}

    def open(self):
        return ModelInfo(2**20, 4096, 256, 2**20, "none")

    def has_room(self, job):
        return True

    def enqueue(self, job):
        self._jobs[job.identifier] = [job, -1]

    def cancel(self, identifier):
        job, count = self._jobs.pop(identifier)
        return [Finished(identifier, "cancelled", len(job.prompt), max(count, 0), 0)]

    def iterate(self):
        if self._tick:
            self._wait()
        events = []
        for identifier, state in list(self._jobs.items()):
            job, count = state
            state[1] += 1
            if count < 0:
                events.append(Started(identifier))
            elif count < job.max_new_tokens:
                events.append(Chunk(identifier, " token", (count,)))
            else:
                events.append(Finished(identifier, "length", len(job.prompt), count, 0))
                del self._jobs[identifier]
        self._returned = time.perf_counter()
        return events

    def is_waiting(self, wake):
        return False

    def reconcile(self, known):
        return 0, [identifier for identifier in known if identifier not in self._jobs]

    @property
    def num_jobs(self):
        return len(self._jobs)

    def occupancy(self):
        return Occupancy()

    def reset(self):
        self._jobs.clear()

    rebuild = reload = reset

    def close(self):
        pass

    def _wait(self):
        """Wait for the next tick, and note the delay. The tick after a late one comes a whole tick
        later, so that delays don't add up.
        """
        called = time.perf_counter()
        if called < self._next:
            time.sleep(self._next - called)
        now = time.perf_counter()
        if now - self._next < 1.0:  # else it was idle
            self.lateness.append(now - self._next)
            self.busy.append(called - self._returned)
        self._next = now + self._tick


def make_engine(backend):
    config = ModelConfig(
        path=MODEL, name="none", max_batch_size=MAX_JOBS, max_pending=0, default_max_tokens=100
    )
    return engine.Engine(config, lambda d: EngineThread(config, lambda: backend, d))


def through_engine(num_streams, num_tokens):
    model = make_engine(TokenBackend())
    model.start()
    model.wait_until_loaded()
    barrier = threading.Barrier(num_streams + 1)
    counts = [0] * num_streams

    def read(i):
        barrier.wait()
        stream = model.submit([engine.Job(f"job{i}", (1,), num_tokens)])
        while not stream.is_finished:
            counts[i] += len(stream.take())

    threads = [threading.Thread(target=read, args=(i,)) for i in range(num_streams)]
    for thread in threads:
        thread.start()
    barrier.wait()
    begin, cpu = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.join()
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    model.close()
    assert counts == [num_tokens + 2] * num_streams
    events = sum(counts)
    print(
        f"engine  streams {num_streams:4d}  {events / seconds:9.0f} events/s"
        f"  {cpu / events * 1e6:6.1f} us of CPU an event",
        flush=True,
    )


def make_app(tick):
    """The application over a TokenBackend, with a route that reports its measurements."""
    import flask

    from switchyard.app import Settings, create_app
    from switchyard.app.services import services

    backend = TokenBackend(tick)
    models = engine.Models([make_engine(backend)])
    app = create_app(Settings(model=MODEL, name="none"), models)

    @app.get("/benchmark")
    def benchmark():
        lateness, backend.lateness = backend.lateness, []
        work, backend.busy = backend.busy, []
        status = pathlib.Path("/proc/self/status").read_text()
        return flask.jsonify(
            lateness=lateness,
            work=work,
            cpu=time.process_time(),
            rss=int(status.partition("VmRSS:")[2].split()[0]) * 1024,
            threads=threading.active_count(),
            stored=[len(services().stored), services().stored.num_bytes],
        )

    models.start()
    models.wait_until_loaded()
    return app


class Server:
    """gunicorn over `make_app`, in its own process."""

    def __init__(self, tick):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._directory = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gunicorn", "--bind", f"127.0.0.1:{port}"),
                *("--worker-class", "gthread", "--threads", str(MAX_JOBS + 16)),
                *("--no-control-socket", "--log-level", "warning", "--pythonpath", str(ROOT)),
                *("--worker-connections", "10000"),
                f"benchmarks.routing:make_app({tick})",
            ],
            cwd=self._directory.name,  # away from the project's gunicorn.conf.py
        )
        self._wait()

    def _wait(self):
        for _ in range(200):
            try:
                return self.stats()
            except OSError:
                time.sleep(0.1)
        raise TimeoutError("the server did not start")

    def stats(self):
        with urllib.request.urlopen(f"{self.url}/benchmark") as response:
            return json.load(response)

    def stop(self):
        self._process.terminate()
        self._process.wait()
        self._directory.cleanup()


def through_http(server, num_streams, num_tokens):
    body = {"prompt": [1], "max_tokens": num_tokens, "stream": True}
    before = server.stats()
    readings = post_all(server.url, "/v1/completions", [body] * num_streams)
    after = server.stats()
    assert all(r.frames == num_tokens + 1 for r in readings), [r.frames for r in readings]
    tokens = num_streams * num_tokens
    late, work = ([1e3 * seconds for seconds in after[name]] for name in ("lateness", "work"))
    print(
        f"http    streams {num_streams:4d}  {tokens / max(r.end for r in readings):9.0f} tokens/s"
        f"  {(after['cpu'] - before['cpu']) / tokens * 1e6:6.1f} us of CPU a token"
        f"  work p50 {percentile(work, 0.5):5.2f} ms p99 {percentile(work, 0.99):5.2f} ms"
        f"  lateness p50 {percentile(late, 0.5):5.2f} ms p99 {percentile(late, 0.99):5.2f} ms",
        flush=True,
    )


def memory(server, num_requests):
    body = {"prompt": "Once upon a time", "max_tokens": 4}
    for stream in (True, False):
        sizes = []
        for i in range(num_requests // 2 // 50):
            post_all(server.url, "/v1/completions", [{**body, "stream": stream}] * 50)
            if i in (num_requests // 10 // 50, num_requests // 2 // 50 - 1):
                sizes.append(server.stats())
        first, last = sizes
        print(
            f"memory  stream {stream!s:5}  after {num_requests // 10} requests"
            f" {first['rss'] / 2**20:6.1f} MiB, after {num_requests // 2}"
            f" {last['rss'] / 2**20:6.1f} MiB ({last['rss'] / first['rss'] - 1:+.1%});"
            f" {first['threads']} and {last['threads']} threads",
            flush=True,
        )


def converse(url, num_turns):
    """Asks for `num_turns` responses, each of which continues the one before."""
    last = None
    for _ in range(num_turns):
        text = uuid.uuid4().hex + " Once upon a time" * 500
        body = {"input": text, "max_output_tokens": 4, "previous_response_id": last}
        data = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/v1/responses", data, headers)
        with urllib.request.urlopen(request) as response:
            last = json.load(response)["id"]
    return num_turns


def stored(server, num_requests):
    """Prints the size each tenth of the way. It must stay once the store is full."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for tenth in range(1, 11):
            begin = time.perf_counter()
            talks = num_requests // 10 // TURNS
            list(pool.map(lambda _: converse(server.url, TURNS), range(talks)))
            seconds, stats = time.perf_counter() - begin, server.stats()
            turns, size = stats["stored"]
            told = f"stored  after {tenth * talks * TURNS:6d} responses"
            print(
                f"{told} {stats['rss'] / 2**20:6.1f} MiB,"
                f" {turns:6d} of them kept, {size / 2**20:5.1f} MiB by the store's count;"
                f" {talks * TURNS / seconds:5.0f} responses/s",
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["engine", "http", "memory", "stored"])
    parser.add_argument("--streams", default="1,16,64,256")
    parser.add_argument("--requests", type=int, default=10_000)
    args = parser.parse_args()
    sizes = [int(n) for n in args.streams.split(",")]
    header()
    if args.what == "engine":
        for n in sizes:
            through_engine(n, 100_000 // n)
        return
    server = Server(tick=TICK if args.what == "http" else 0.0)
    try:
        if args.what == "memory":
            memory(server, args.requests)
        elif args.what == "stored":
            stored(server, args.requests)
        else:
            for n in sizes:
                through_http(server, n, 250)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
