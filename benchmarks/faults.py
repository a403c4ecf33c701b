#!/usr/bin/env python3
"""How many seconds after its client's failure does a request end, in each phase of its life?

    python benchmarks/faults.py [MODEL_DIR]

Starts a server over the real generator, slowed down so that each phase lasts: 200 ms an iteration
during the prompt, 20 ms while tokens come. A cancellation may wait for one iteration. After each
cell every page of the cache must be free again, else the benchmark ends.
"""

import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.report import header  # noqa: E402
from tests.faults import matrix  # noqa: E402
from tests.faults.conftest import SLOWED  # noqa: E402
from tests.live.conftest import Server  # noqa: E402


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "models" / "demo")
    header()
    with tempfile.TemporaryDirectory() as directory:
        server = Server(SLOWED, pathlib.Path(directory), model=path, **matrix.SETTINGS)
        try:
            server.wait_until_ready()
            print(f"{'':24}" + "".join(f"{way:>24}" for way in matrix.WAYS))
            for phase in matrix.PHASES:
                for streams in (True, False):
                    print(f"{phase:10}{'streaming' if streams else 'not':14}", end="", flush=True)
                    for way in matrix.WAYS:
                        seconds = matrix.run(server, phase, streams, way)
                        what, _ = matrix.expected(phase, streams, way)
                        print(f"{f'{what} {seconds:.2f} s':>24}", end="", flush=True)
                    print()
        finally:
            server.stop()


if __name__ == "__main__":
    main()
