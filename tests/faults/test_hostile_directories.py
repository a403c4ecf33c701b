"""A server that is told to load model directories of strangers serves its clients on."""

import concurrent.futures
import itertools
import json
import pathlib
import re
import threading
import time

import pytest

from tests.faults.conftest import worker_of
from tests.hostile import KINDS, add_tokens, grow, nest, spoiled, think_long, widen
from tests.live.conftest import GUNICORN

GAP = 3.0  # seconds; 8.3 with 400,000 added tokens read in the server's process


def memory_of(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])


WORST = (add_tokens, nest, grow, widen)
# How an operator loads a directory of `models_dir`.
WAYS = (
    lambda name: (f"/admin/models/{name}", {}),
    lambda name: ("/admin/models/tiny", {"model": name}),
    lambda name: ("/v1/model/load", {"name": name}),
    lambda name: ("/models/load", {"model": name}),
)


def ask(server, is_over):
    """Stream one answer after the other; the longest gap in any of them."""
    body = {"prompt": "Once", "max_tokens": 100, "ignore_eos": True, "stream": True}
    longest = []
    while not (is_over.is_set() and longest):
        times = [time.monotonic()]
        with server.post("/v1/completions", body, stream=True) as answer:
            assert answer.status_code == 200
            times += [time.monotonic() for _ in answer.iter_lines()]
        longest.append(max(b - a for a, b in itertools.pairwise(times)))
    return max(longest)


def error_of(answer):
    """The message of a body, or of a stream's last event."""
    last = answer.text.strip().splitlines()[-1].removeprefix("data: ")
    return json.loads(last)["error"]["message"]


@pytest.mark.parametrize(
    "worst", [WORST, pytest.param((think_long,), marks=pytest.mark.hardship)], ids=["quick", "slow"]
)
def test_no_hostile_directory_hurts_others(start, model_path, tmp_path, worst):
    for spoil in worst:
        spoiled(spoil, model_path, tmp_path / "models")
    server = start(GUNICORN, models_dir=tmp_path / "models").wait_until_ready()
    worker = worker_of(server)
    before, is_over = memory_of(worker), threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        client = pool.submit(ask, server, is_over)
        for spoil, way in zip(worst, WAYS, strict=False):
            told, answer = KINDS[spoil], server.post(*way(spoil.__name__))
            assert answer.status_code in (200, 400, 503), answer.text
            assert re.search(told, error_of(answer)), answer.text
            assert "\n" not in error_of(answer)
        is_over.set()
        assert client.result() < GAP
    assert memory_of(worker) - before < 100_000
    assert "Traceback" not in server.output
    assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status_code == 200
