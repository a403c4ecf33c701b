#!/usr/bin/env python3
"""How long does a request to an unloaded model wait, and what memory do loads leave behind?

    python benchmarks/demand.py [MODEL_DIR] [--rounds 20]

Starts a server with the SWITCHYARD_* settings of this environment and two models of the same files.
In each round, an operator loads the second one; it answers a request and is unloaded; a request
loads it; it is unloaded again. `load`: as the server reports it. `first text`: from the connection
to the first frame, with the model loaded, and with a load by the request. Memory: of the server's
processes and of the GPUs, after the last unload of each round. Exit status 1 if the GPUs' memory
after the last round is more than 1 % above that after the second.
"""

import argparse
import pathlib
import signal
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.client import Client  # noqa: E402
from benchmarks.report import header  # noqa: E402
from benchmarks.steady import device_mb, host_mb  # noqa: E402
from benchmarks.swap import IDLE, change, start, wait_for  # noqa: E402

LARGER = 1.01  # highest ratio


def first_text(url):
    """Seconds until the first text."""
    body = {"model": IDLE, "prompt": "Once", "max_tokens": 1, "stream": True, "ignore_eos": True}
    [reading] = Client(url, "/v1/completions").post([body], 1)
    if reading.fault:
        sys.exit(reading.fault)
    return reading.arrivals[0][0] - reading.begin


def unload(url):
    change(url, "DELETE", f"/admin/models/{IDLE}")
    wait_for(url, IDLE, "unloaded")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=str(ROOT / "models" / "demo"))
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    args.other = args.model
    header()
    rounds = []
    with tempfile.TemporaryDirectory() as directory:
        process, url = start(args, directory, idle="demand")
        try:
            for _ in range(args.rounds):
                told = change(url, "POST", f"/admin/models/{IDLE}", {})
                first_text(url)
                warm = first_text(url)
                unload(url)
                cold = first_text(url)
                unload(url)
                rounds.append((told["seconds"], warm, cold, host_mb(process.pid), device_mb() or 0))
                print(
                    "load {:.2f} s  warm {:.3f}  cold {:.2f}  MB {:.0f}  {:.0f}".format(*rounds[-1])
                )
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)
    load, warm, cold = (statistics.median(one[i] for one in rounds) for i in range(3))
    print(f"load {load:.2f} s, first text {1000 * warm:.0f} ms, by demand {cold:.2f} s: medians")
    grown = [rounds[-1][i] / rounds[1][i] for i in (3, 4) if rounds[1][i]]
    print("last round by the second:", *(f"{one:.3f}" for one in grown))
    sys.exit(len(grown) > 1 and grown[1] > LARGER)


if __name__ == "__main__":
    main()
