#!/usr/bin/env python3
"""How much less evenly do tokens come behind nginx, with the project's own file for it?

    python benchmarks/proxy.py [--streams 256] [--rounds 3] [--nginx nginx]

The backend of delivery.py has a token for every job each 20 ms, and the sender writes them. In
turns, the streams go directly to their client, and through deploy/proxy/nginx.conf without TLS.
`gap`: between the tokens of a stream, at its client.
"""

import argparse
import contextlib
import itertools
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.client import percentile, post_all  # noqa: E402
from benchmarks.delivery import NUM_TOKENS, WARM_UP, WINDOW, Server  # noqa: E402
from benchmarks.report import header  # noqa: E402
from benchmarks.routing import TICK  # noqa: E402

AROUND = """\
daemon off; pid {at}/pid; error_log {at}/log;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {at}/body; proxy_temp_path {at}/proxy;
  fastcgi_temp_path {at}/f; uwsgi_temp_path {at}/u; scgi_temp_path {at}/s;
  {file}
}}
"""


@contextlib.contextmanager
def behind_nginx(program, url):
    """The URL of one in front of a server."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    file = (ROOT / "deploy" / "proxy" / "nginx.conf").read_text()
    file = file.replace("listen 443 ssl http2;", f"listen 127.0.0.1:{port};")
    file = file.replace("server 127.0.0.1:8000;", f"server {url.removeprefix('http://')};")
    file = re.sub("ssl_certificate.*;", "", file)
    with tempfile.TemporaryDirectory() as at:
        config = pathlib.Path(at) / "nginx.conf"
        config.write_text(AROUND.format(at=at, file=file))
        root = ["-g", "user root;"] if os.geteuid() == 0 else []
        process = subprocess.Popen([program, "-p", at, "-c", config, *root])
        try:
            deadline = time.monotonic() + 20
            while True:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("nginx did not start")
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


def gaps_at(url, num_streams):
    """In seconds, while all run. All streams must be whole."""
    body = {"prompt": [1], "max_tokens": NUM_TOKENS, "stream": True}
    readings = post_all(url, "/v1/completions", [body] * num_streams)
    faults = [r.fault for r in readings if r.fault or r.frames != NUM_TOKENS + 1]
    assert not faults, (len(faults), faults[:3])
    gaps = []
    for reading in readings:
        times = [t for t, _ in reading.arrivals if WARM_UP <= t <= WARM_UP + WINDOW]
        gaps += [after - before for before, after in itertools.pairwise(times)]
    return gaps


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nginx", default="nginx")
    args = parser.parse_args()
    header()
    p99 = {"direct": [], "nginx": []}
    with Server("sender") as server, behind_nginx(args.nginx, server.url) as proxied:
        for _ in range(args.rounds):
            for way, url in (("direct", server.url), ("nginx", proxied)):
                gaps = gaps_at(url, args.streams)
                p99[way].append(percentile(gaps, 0.99))
                print(
                    f"streams {args.streams}  {way:6}  gap p50 {percentile(gaps, 0.5) / TICK:5.2f}"
                    f"  p99 {p99[way][-1] / TICK:5.2f} ticks of {TICK * 1e3:g} ms",
                    flush=True,
                )
    direct, nginx = (statistics.median(p99[way]) for way in ("direct", "nginx"))
    loads = " ".join(f"{load:.1f}" for load in os.getloadavg())
    print(f"median p99 behind nginx / direct: {nginx / direct:.2f}; load {loads}")


if __name__ == "__main__":
    main()
