#!/usr/bin/env python3
"""What does delivery cost for a token, by the thread that writes? How evenly do tokens come?

    scripts/bootstrap requirements-uvicorn.txt
    python benchmarks/delivery.py [--streams 64,256] [--rounds 3]

The backend has a token for every job each 20 ms. `nobody`: streams are not read. Through gunicorn:
by the sender, or by a thread for each request. Through uvicorn: one call of the event loop in each
iteration moves the streams' events into asyncio.Queues. All in turns, each in a server process of
its own, measured while all streams run. `work`: mean time of the engine thread between two
iterations. `cpu`: of the server's process without that thread. `gap`: between the tokens of a
stream, at its client.
"""

import argparse
import asyncio
import contextlib
import functools
import gc
import itertools
import json
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.client import Client, percentile  # noqa: E402
from benchmarks.report import header  # noqa: E402
from benchmarks.routing import MAX_JOBS, MODEL, TICK, TokenBackend, make_engine  # noqa: E402
from switchyard import engine  # noqa: E402
from switchyard.engine.messages import Chunk, Finished  # noqa: E402

WAYS = ("nobody", "sender", "request threads", "uvicorn")
WARM_UP, WINDOW = 4.0, 4.0  # seconds
STARTED = int(time.time())
NUM_TOKENS = int((WARM_UP + WINDOW + 3) / TICK)


class Backend(TokenBackend):
    """A backend that reports its work since the last report."""

    def __init__(self):
        super().__init__(TICK)
        gc.set_threshold(50_000)  # as wsgi.py does
        self._num_tokens = 0
        self._cpu = 0.0  # CPU seconds of the engine thread
        self._last = (0, 0.0, 0.0)

    def iterate(self):
        self._cpu = time.thread_time()
        events = super().iterate()
        self._num_tokens += sum(isinstance(event, Chunk) for event in events)
        return events

    def stats(self):
        now = (self._num_tokens, self._cpu, time.process_time())
        tokens, engine_cpu, cpu = (a - b for a, b in zip(now, self._last, strict=True))
        self._last = now
        work, self.busy = self.busy, []
        return {"tokens": tokens, "cpu": cpu - engine_cpu, "work": work}


def make_app(way):
    """For gunicorn. `nobody`: a POST to /nobody submits jobs whose streams are not read."""
    import flask

    from switchyard.app import Settings, create_app

    backend = Backend()
    model = make_engine(backend)
    models = engine.Models([model])
    app = create_app(Settings(model=MODEL, name="none", reserve_threads=32), models)
    streams = []

    @app.get("/benchmark")
    def benchmark():
        return flask.jsonify(backend.stats())

    @app.post("/nobody/<int:num_streams>")
    def submit(num_streams):
        for i in range(num_streams):
            job = engine.Job(f"{len(streams)}-{i}", (1,), NUM_TOKENS)
            streams.append(model.submit([job], lambda: None))  # as for a thread that polls
        return ""

    if way == "request threads":
        inner = app.wsgi_app
        # A middleware in between keeps the sender out.
        app.wsgi_app = lambda environ, start: inner(environ, lambda *args: start(*args))
    models.start()
    models.wait_until_loaded()
    return app


def make_asgi():
    """The application for uvicorn: the minimum for streams."""
    import pydantic_core
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, StreamingResponse
    from starlette.routing import Route

    backend = Backend()
    model = make_engine(backend)
    queues = {}  # by stream

    def route():
        for stream, queue in queues.items():
            if stream.has_events:
                for event in stream.take(0):
                    queue.put_nowait(event)

    def frame(identifier, text, finish_reason):
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
        head = {"id": identifier, "object": "text_completion", "created": STARTED, "model": "none"}
        return b"data: " + pydantic_core.to_json({**head, "choices": [choice]}) + b"\n\n"

    async def frames(identifier, stream):
        queue = queues[stream]
        try:
            while True:
                match await queue.get():
                    case Chunk(text=text):
                        yield frame(identifier, text, None)
                    case Finished(finish_reason=reason):
                        yield frame(identifier, "", reason) + b"data: [DONE]\n\n"
                        return
        finally:  # also after the client has left, as starlette notices
            del queues[stream]
            stream.close()

    async def completions(request):
        body = await request.json()
        identifier = f"cmpl-{uuid.uuid4().hex}"
        job = engine.Job(identifier, tuple(body["prompt"]), body["max_tokens"])
        stream = model.submit([job], request.app.state.wake)
        queues[stream] = asyncio.Queue()
        return StreamingResponse(frames(identifier, stream), media_type="text/event-stream")

    async def benchmark(request):
        return JSONResponse(backend.stats())

    @contextlib.asynccontextmanager
    async def lifespan(app):
        loop = asyncio.get_running_loop()
        app.state.wake = functools.partial(loop.call_soon_threadsafe, route)
        model.start()
        model.wait_until_loaded()
        yield

    routes = [
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/benchmark", benchmark),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


class Server:
    """`make`: makes the application for `way`."""

    def __init__(self, way, make="benchmarks.delivery:make_app"):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._directory = tempfile.TemporaryDirectory()
        if way == "uvicorn":
            server = [
                *("uvicorn", "--factory", "benchmarks.delivery:make_asgi", "--port", str(port)),
                *("--log-level", "warning", "--no-access-log", "--app-dir", str(ROOT)),
            ]
        else:
            server = [
                *("gunicorn", "--bind", f"127.0.0.1:{port}", "--worker-class", "gthread"),
                *("--threads", str(MAX_JOBS + 16), "--worker-connections", "10000"),
                *("--no-control-socket", "--log-level", "warning", "--pythonpath", str(ROOT)),
                f"{make}({way!r})",
            ]
        # Outside the project's directory, whose gunicorn.conf.py is for the real server.
        self._process = subprocess.Popen([sys.executable, "-m", *server], cwd=self._directory.name)

    def __enter__(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                self.stats()
                return self
            time.sleep(0.1)
        raise TimeoutError("the server did not start")

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        self._directory.cleanup()

    def stats(self):
        with urllib.request.urlopen(f"{self.url}/benchmark") as response:
            return json.load(response)


def watch(server, reader):
    """The server's report on the time in which all streams of the thread `reader` run."""
    reader.start()
    time.sleep(WARM_UP)
    server.stats()
    time.sleep(WINDOW)
    stats = server.stats()
    reader.join()
    return stats


def measure(way, num_streams):
    """Returns work of a tick in seconds, CPU seconds for a token, gaps in seconds."""
    with Server(way) as server:
        readings = []

        def read():
            body = {"prompt": [1], "max_tokens": NUM_TOKENS, "stream": True}
            client = Client(server.url, "/v1/completions")
            readings.extend(client.post([body] * num_streams, num_streams))

        if way == "nobody":
            url = f"{server.url}/nobody/{num_streams}"
            urllib.request.urlopen(urllib.request.Request(url, b"", method="POST")).close()
        reader = threading.Thread(target=(lambda: None) if way == "nobody" else read)
        stats = watch(server, reader)
    assert all(not r.fault and r.frames == NUM_TOKENS + 1 for r in readings)
    gaps = []
    for reading in readings:
        times = [t for t, _ in reading.arrivals if WARM_UP <= t <= WARM_UP + WINDOW]
        gaps += [after - before for before, after in itertools.pairwise(times)]
    return statistics.mean(stats["work"]), stats["cpu"] / stats["tokens"], gaps


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", default="64,256")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    header()
    for num_streams in map(int, args.streams.split(",")):
        results = {way: [] for way in WAYS}
        for _ in range(args.rounds):
            for way in WAYS:
                results[way].append(measure(way, num_streams))
        alone = statistics.median(work for work, _, _ in results["nobody"])
        for way in WAYS:
            work, cpu = (statistics.median(r[i] for r in results[way]) for i in range(2))
            p99 = statistics.median(percentile(gaps, 0.99) for _, _, gaps in results[way])
            gap = "" if way == "nobody" else f"  gap p99 {p99 / TICK:5.2f} ticks"
            print(
                f"streams {num_streams:4d}  {way:16}  work {work * 1e3:6.2f} ms"
                f" ({work / alone:5.2f} times)  cpu {cpu * 1e6:6.1f} us a token{gap}",
                flush=True,
            )


if __name__ == "__main__":
    main()
