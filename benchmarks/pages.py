#!/usr/bin/env python3
"""How many chats run at once, by the `max_tokens` that they ask for?

    python benchmarks/pages.py [MODEL_DIR] [--chats 40] [--max-tokens 150 unset 1900 4096 32000]

Starts a server with the SWITCHYARD_* settings of this environment, and for each number sends all
chats at once, each with its own text. `at once`: most jobs in the batch, looked at 20 times a
second. `put back`: jobs parked for want of pages. `first text`: seconds, of half and 99 % of the
chats. Exit status 1 if a chat failed.
"""

import argparse
import contextlib
import pathlib
import signal
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.client import percentile, post_all  # noqa: E402
from benchmarks.report import header  # noqa: E402
from benchmarks.steady import start_server  # noqa: E402

QUESTION = "Count from {} to {}."
INTERVAL = 0.05  # seconds


def metric(url, name):
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


class Looks:
    """The most jobs in the batch at any look."""

    def __init__(self, url):
        self.most = 0.0
        self._url = url
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()

    def _look(self):
        while not self._end.wait(INTERVAL):
            with contextlib.suppress(OSError):
                self.most = max(self.most, metric(self._url, "vllm:num_requests_running"))


def ask(url, num_chats, max_tokens, serial):
    """Prints a line. Returns the number of failed chats."""
    bodies = [
        {
            "messages": [{"role": "user", "content": QUESTION.format(i + 1, i + 35 + serial)}],
            **({} if max_tokens == "unset" else {"max_tokens": int(max_tokens)}),
            **{"stream": True, "stream_options": {"include_usage": True}, "seed": i},
        }
        for i in range(num_chats)
    ]
    before, begin = metric(url, "vllm:num_preemptions_total"), time.perf_counter()
    with Looks(url) as looks:
        readings = post_all(url, "/v1/chat/completions", bodies)
    seconds = time.perf_counter() - begin
    tokens = sum((one.usage or {}).get("completion_tokens", 0) for one in readings)
    firsts = [one.arrivals[0][0] - one.begin for one in readings if one.arrivals]
    parked = metric(url, "vllm:num_preemptions_total") - before
    print(
        f"max_tokens {max_tokens:>6}: {looks.most:.0f} at once, {seconds:.1f} s, {tokens} tokens,"
        f" {tokens / seconds:.0f} a second, {parked:.0f} put back,"
        f" first text {percentile(firsts, 0.5):.1f} {percentile(firsts, 0.99):.1f}",
        flush=True,
    )
    faults = [one.fault for one in readings if one.fault]
    for fault in faults[:3]:
        print(fault)
    return len(faults)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=str(ROOT / "models" / "demo"))
    parser.add_argument("--chats", type=int, default=40)
    parser.add_argument(
        "--max-tokens", nargs="+", default=["150", "unset", "1900", "4096", "32000"]
    )
    args = parser.parse_args()
    header()
    with tempfile.TemporaryDirectory() as directory:
        process, url = start_server(args.model, directory, {"SWITCHYARD_LOG_LEVEL": "ERROR"})
        try:
            numbers = enumerate(args.max_tokens)
            num_faults = sum(ask(url, args.chats, number, i) for i, number in numbers)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)
    sys.exit(num_faults > 0)


if __name__ == "__main__":
    main()
