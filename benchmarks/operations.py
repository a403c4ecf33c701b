#!/usr/bin/env python3
"""What do keys, limits, logs and numbers cost?

    python benchmarks/operations.py streams [--streams 256] [--rounds 3]
    python benchmarks/operations.py requests [--rounds 3]

`streams`: as delivery.py's `sender`, with all of these off and on, in turns: a key with limits that
are never reached, an access log in JSON, metrics, a ledger, a read of /metrics each second. `rate`:
share of the backend's tokens that were delivered.

`requests`: CPU of the server without the engine thread, for one of some thousand requests of one
token, sent one after the other on each of sixteen connections; and for one read of /metrics.
Measured with a key, its limits and the log, then with metrics and ledger added one by one, all in
turns. The result is the minimum over the rounds, since noise only adds.
"""

import argparse
import hashlib
import itertools
import pathlib
import statistics
import sys
import threading
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.client import Client, percentile  # noqa: E402
from benchmarks.delivery import NUM_TOKENS, WARM_UP, WINDOW, Backend, Server, watch  # noqa: E402
from benchmarks.report import header  # noqa: E402
from benchmarks.routing import MODEL, TICK, make_engine  # noqa: E402
from switchyard import engine  # noqa: E402

KEY = "sk-sy-benchmark-0123456789abcdef"
NUM_REQUESTS, NUM_CONNECTIONS, NUM_SCRAPES = 3000, 16, 100
ALL = "keys+metrics+ledger"
WAYS = ("off", "keys", "keys+metrics", "keys+ledger", ALL)
MAKE = "benchmarks.operations:make_app"


def make_app(way):
    """The application for gunicorn, in its own directory. `way`: one of WAYS; "keys": with
    limits and the log.
    """
    import flask

    from switchyard.app import Settings, create_app
    from switchyard.app.operations.logs import listen

    parts = way.split("+")
    settings = {"metrics": "key" if "metrics" in parts else "off"}
    if "ledger" in parts:
        settings |= {"ledger": "ledger.sqlite"}
    if "keys" in parts:
        keys = pathlib.Path("keys.toml")
        digest = hashlib.sha256(KEY.encode()).hexdigest()
        limits = "rpm = 1000000\ntpm = 1000000000\nconcurrency = 1000"
        keys.write_text(
            f'[[keys]]\nname = "one"\nrole = "admin"\nhash = "sha256:{digest}"\n{limits}\n'
        )
        keys.chmod(0o600)
        settings |= {"keys_file": str(keys), "access_log": "access.log"}
        listen("WARNING", "json", "access.log")
    backend = Backend()
    models = engine.Models([make_engine(backend)])
    app = create_app(Settings(model=MODEL, name="none", reserve_threads=32, **settings), models)

    @app.get("/benchmark")
    def benchmark():
        return flask.jsonify(backend.stats())

    models.start()
    models.wait_until_loaded()
    return app


class Scraper(threading.Thread):
    """Reads /metrics each second."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self._request = urllib.request.Request(
            f"{server.url}/metrics", headers={"Authorization": f"Bearer {KEY}"}
        )
        self._is_over = threading.Event()

    def run(self):
        while not self._is_over.wait(1.0):
            self.read()

    def read(self):
        urllib.request.urlopen(self._request).read()

    def stop(self):
        self._is_over.set()
        self.join()


def measure(way, num_streams):
    """Returns the share of delivered tokens, CPU seconds for a token, gaps in seconds."""
    with Server(way, MAKE) as server:
        readings = []
        body = {"prompt": [1], "max_tokens": NUM_TOKENS, "stream": True}
        client = Client(server.url, "/v1/completions", KEY)
        reader = threading.Thread(
            target=lambda: readings.extend(client.post([body] * num_streams, num_streams))
        )
        scraper = Scraper(server)
        if way == ALL:
            scraper.start()
        stats = watch(server, reader)
        if way == ALL:
            scraper.stop()
    assert all(not r.fault and r.frames == NUM_TOKENS + 1 for r in readings)
    gaps, delivered = [], 0
    for reading in readings:
        within = [(t, n) for t, n in reading.arrivals if WARM_UP <= t <= WARM_UP + WINDOW]
        delivered += sum(n for _, n in within)
        times = [t for t, _ in within]
        gaps += [after - before for before, after in itertools.pairwise(times)]
    rate = delivered / (num_streams * WINDOW / TICK)
    return rate, stats["cpu"] / stats["tokens"], percentile(gaps, 0.99)


def measure_request(way):
    """Returns CPU seconds for a request, and for a read of /metrics."""
    with Server(way, MAKE) as server:
        body = {"prompt": [1], "max_tokens": 1}
        client = Client(server.url, "/v1/completions", KEY)
        for number in (NUM_REQUESTS // 10, NUM_REQUESTS):
            server.stats()
            answers = list(client.post([body] * number, NUM_CONNECTIONS))
            stats = server.stats()
        assert all(answer.status == 200 for answer in answers)
        if "metrics" not in way:
            return stats["cpu"] / NUM_REQUESTS, 0.0
        scraper = Scraper(server)
        for _ in range(NUM_SCRAPES):
            scraper.read()
        return stats["cpu"] / NUM_REQUESTS, server.stats()["cpu"] / NUM_SCRAPES


def compare_streams(num_streams, rounds):
    ways = {"off": [], ALL: []}
    for _ in range(rounds):
        for way, results in ways.items():
            results.append(measure(way, num_streams))
    for way, results in ways.items():
        rate, cpu, gap = (statistics.median(column) for column in zip(*results, strict=True))
        print(
            f"{way:20} streams {num_streams:4d}  rate {rate:6.3f}  cpu {cpu * 1e6:5.1f} us a token"
            f"  gap p99 {gap / TICK:5.2f} ticks"
        )


def compare_requests(rounds):
    ways = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, results in ways.items():
            results.append(measure_request(way))
    off = min(request for request, _ in ways["off"])
    for way, results in ways.items():
        request, scrape = (min(column) for column in zip(*results, strict=True))
        of_scrape = f"  scrape {scrape * 1e3:5.2f} ms" if scrape else ""
        print(
            f"{way:20} request {request * 1e3:6.3f} ms  {(request - off) * 1e3:+6.3f} ms"
            f"  {request / off:5.2f} times{of_scrape}"
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("streams", "requests"))
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    header()
    if args.what == "streams":
        compare_streams(args.streams, args.rounds)
    else:
        compare_requests(args.rounds)


if __name__ == "__main__":
    main()
