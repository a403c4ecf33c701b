#!/usr/bin/env python3
"""Does a server under constant load become slower, or larger?

    python benchmarks/steady.py [MODEL_DIR] [--minutes 10] [--streams 256]

Starts a server with the SWITCHYARD_* settings of this environment, with room for all streams, and
keeps it busy. Each minute: tokens a second, resident memory of the server's processes, memory of
the GPUs in use. Exit status 1 if a request failed; if the last minute is more than 3% slower than
the second; or if memory has grown by more than 2% since the end of the second minute.
"""

import argparse
import collections
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import load  # noqa: E402
from benchmarks.report import header  # noqa: E402
from benchmarks.serve import Server  # noqa: E402

SLOWER, LARGER = 0.97, 1.02  # lowest and highest ratio


def start_server(model, directory, defaults, conf="gunicorn.conf.py"):
    """Returns the process and its URL. `model`: None if `defaults` name it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    environment = {
        "SWITCHYARD_LOG_LEVEL": "WARNING",
        **defaults,
        **os.environ,
        "SWITCHYARD_BIND": url.removeprefix("http://"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    if model is not None:
        environment["SWITCHYARD_MODEL"] = model
    command = [sys.executable, "-m", "gunicorn", "-c", str(ROOT / conf)]
    with open(os.path.join(directory, "server.log"), "wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    deadline = time.monotonic() + 600
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{url}/health/ready", timeout=5)
            return process, url
        except OSError:
            time.sleep(0.2)
    sys.exit(pathlib.Path(directory, "server.log").read_text())


def family(pid):
    """A process and all its descendants."""
    children = collections.defaultdict(list)
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        children[int(fields[1])].append(int(path.parent.name))
    found = [pid]
    for one in found:
        found += children[one]
    return found


def host_mb(pid):
    """Private memory of a process: shared memory would count twice."""
    total = 0
    for one in family(pid):
        try:
            fields = pathlib.Path(f"/proc/{one}/statm").read_text().split()
        except OSError:
            continue
        total += int(fields[1]) - int(fields[2])
    return total * os.sysconf("SC_PAGE_SIZE") / 1e6


def device_mb():
    """Used memory of the GPUs in CUDA_VISIBLE_DEVICES, or of all. None without a GPU."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        command.append(f"--id={visible}")
    return sum(map(float, subprocess.check_output(command, text=True).split()))


class Minutes:
    """Tokens in each minute, counted as they come, and the server's memory at its end."""

    def __init__(self, pid):
        self.tokens = collections.Counter()
        self.faults = collections.Counter()
        self.memory = []  # (host, device) in MB
        self._pid = pid

    def note(self, reading):
        if reading.fault:
            self.faults[reading.fault] += 1
        elif reading.arrivals:
            share = reading.usage["completion_tokens"] / sum(n for _, n in reading.arrivals)
            for t, n in reading.arrivals:
                self.tokens[int(t // 60)] += n * share
        while reading.end // 60 > len(self.memory):
            self.memory.append((host_mb(self._pid), device_mb()))


def report(minutes, num_minutes):
    for i in range(num_minutes):
        host, device = minutes.memory[i]
        on_device = "" if device is None else f", {device:.0f} MB on GPUs"
        print(f"minute {i + 1:3d}  {minutes.tokens[i] / 60:9.1f} tok/s  {host:.0f} MB{on_device}")
    for fault, count in minutes.faults.most_common(5):
        print(f"  {count} times: {fault}")
    speed = minutes.tokens[num_minutes - 1] / minutes.tokens[1]
    growth = [
        b / a for a, b in zip(minutes.memory[1], minutes.memory[num_minutes - 1], strict=True) if a
    ]
    print(
        f"last minute by the second: speed {speed:.3f},"
        f" memory {', '.join(f'{x:.3f}' for x in growth)}; {minutes.faults.total()} errors"
    )
    return not minutes.faults and speed >= SLOWER and max(growth) <= LARGER


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=str(ROOT / "models" / "demo"))
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--prompt-words", default="16,64,64,256")
    parser.add_argument("--new-tokens", default="32,64,128,256")
    args = parser.parse_args()
    if args.minutes < 2:
        parser.error("--minutes must be at least 2: the second is what others are compared with")
    header()
    with tempfile.TemporaryDirectory() as directory:
        process, url = start_server(
            args.model, directory, {"SWITCHYARD_MAX_BATCH_SIZE": str(args.streams)}
        )
        try:
            options = types.SimpleNamespace(api_key=None, temperature=0.8, model=None)
            server, minutes = Server("server", url, options), Minutes(process.pid)
            bodies = load.within(60 * args.minutes + 5, server.bodies(load.Load.read(args), 0))
            for reading in server.client.post(bodies, args.streams):
                minutes.note(reading)
            is_well = report(minutes, args.minutes)
        finally:
            process.send_signal(signal.SIGTERM)
            print(f"server's exit status {process.wait(120)}")
            if process.returncode:
                print(pathlib.Path(directory, "server.log").read_text()[-10_000:])
    sys.exit(0 if is_well and not process.returncode else 1)


if __name__ == "__main__":
    main()
