#!/usr/bin/env python3
"""What do a swap, and an idle second model, cost running requests?

    python benchmarks/swap.py [MODEL_DIR] [--other MODEL_DIR] [--requests 1000] [--swaps 4]

Starts a server with the SWITCHYARD_* settings of this environment and two models of the same files,
and keeps one busy. In turns, twice: the busy model alone; the other one loaded beside it, without a
request. Then the busy one is swapped to `--other` and back. TTFT: from the connection to the first
frame of text. Exit status 1 if a request or a swap failed.
"""

import argparse
import json
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.client import Client, percentile  # noqa: E402
from benchmarks.report import header  # noqa: E402
from benchmarks.steady import start_server  # noqa: E402

PROMPT = "Once upon a time there was a number {} that"
BUSY, IDLE = "busy", "idle"


def start(args, directory, idle="manual"):
    """Returns the process and its URL. `idle`: the load policy of the idle model."""
    config = pathlib.Path(directory, "switchyard.toml")
    tables = ({"name": BUSY}, {"name": IDLE, "load": idle})
    lines = [f'models_dir = "{pathlib.Path(args.other).resolve().parent}"']
    for table in tables:
        table = {**table, "model": str(pathlib.Path(args.model).resolve())}
        lines += ["[[models]]", *(f'{name} = "{value}"' for name, value in table.items())]
    config.write_text("\n".join(lines) + "\n")
    defaults = {"SWITCHYARD_CONFIG": str(config), "SWITCHYARD_LOG_LEVEL": "ERROR"}
    return start_server(None, directory, defaults)


def change(url, method, path, body=None):
    """Returns the last event of the answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{url}{path}", data, method=method)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=600) as response:
        events = response.read().decode().strip().split("\n\n")
    return json.loads(events[-1].removeprefix("data: "))


def wait_for(url, name, value):
    while True:
        with urllib.request.urlopen(f"{url}/v1/models/{name}", timeout=60) as response:
            if json.load(response)["status"]["value"] == value:
                return
        time.sleep(0.2)


def ask(url, args, number):
    """Readings of `number` requests, of different lengths, so that they don't end together."""
    rng = random.Random(number)
    bodies = (
        {
            **{"model": BUSY, "prompt": PROMPT.format(i)},
            **{"max_tokens": round(args.tokens * rng.uniform(0.25, 1.75))},
            **{"stream": True, "temperature": 0, "ignore_eos": True},
        }
        for i in range(number)
    )
    return list(Client(url, "/v1/completions").post(bodies, args.streams))


def report(what, readings):
    """Returns the number of failed requests."""
    faults = [reading.fault for reading in readings if reading.fault]
    good = [reading for reading in readings if not reading.fault]
    first = [reading.arrivals[0][0] - reading.begin for reading in good]
    seconds = max(reading.end for reading in readings)
    rate = sum(reading.frames for reading in good) / seconds
    p50, p99 = (f"{1000 * percentile(first, share):.0f}" for share in (0.5, 0.99))
    print(
        f"{what:24} requests {len(readings):5}  failed {len(faults)}  frames/s {rate:8.1f}"
        f"  TTFT p50 {p50} ms  p99 {p99} ms  max {1000 * max(first):.0f} ms",
        flush=True,
    )
    for fault in faults[:5]:
        print(f"  {fault}")
    return len(faults)


class Swaps(threading.Thread):
    """Swaps one after the other, at most one each `interval` seconds; first half of it passes."""

    def __init__(self, url, args, interval):
        super().__init__()
        self._url = url
        self._interval = interval
        self._models = [str(pathlib.Path(args.other).resolve().name), args.model]
        self._number = args.swaps
        self.is_over = threading.Event()
        self.told = []

    def run(self):
        self.is_over.wait(self._interval / 2)  # not together with the start of all clients
        for i in range(self._number):
            model = self._models[i % 2]
            body = {"model": model if i % 2 == 0 else str(pathlib.Path(model).resolve())}
            begin = time.monotonic()
            self.told.append(change(self._url, "POST", f"/admin/models/{BUSY}", body))
            if self.is_over.wait(max(self._interval - (time.monotonic() - begin), 0.01)):
                return


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=str(ROOT / "models" / "demo"))
    parser.add_argument("--other", help="swapped in; default: the same files")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64, help="of a request, in the mean")
    parser.add_argument("--swaps", type=int, default=4)
    args = parser.parse_args()
    args.other = args.other or args.model
    header()
    with tempfile.TemporaryDirectory() as directory:
        process, url = start(args, directory)
        try:
            num_failed = measure(url, args)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)
    sys.exit(bool(num_failed))


def measure(url, args):
    """Returns the number of failed requests and swaps."""
    ask(url, args, args.requests // 10)
    num_failed = 0
    for _ in range(2):
        readings = ask(url, args, args.requests)
        num_failed += report("alone", readings)
        change(url, "POST", f"/admin/models/{IDLE}", {})
        num_failed += report("beside an idle one", ask(url, args, args.requests))
        change(url, "DELETE", f"/admin/models/{IDLE}")
        wait_for(url, IDLE, "unloaded")
    swaps = Swaps(url, args, max(one.end for one in readings) / args.swaps)
    swaps.start()
    readings = ask(url, args, args.requests)
    swaps.is_over.set()
    swaps.join()
    for told in swaps.told:
        print(told)
    lost = sum("error" in told for told in swaps.told)
    return num_failed + report(f"over {len(swaps.told)} swaps", readings) + lost


if __name__ == "__main__":
    main()
