"""A server that is told to load model directories of strangers serves its clients on."""

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


class Client:
    """Streams one answer after the other, and notes the longest gap."""

    def __init__(self, server):
        self._server = server
        self._is_over = False
        self.num_answers = 0
        self.gap = 0.0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        body = {"prompt": "Once", "max_tokens": 100, "ignore_eos": True, "stream": True}
        while not self._is_over:
            last = time.monotonic()
            with self._server.post("/v1/completions", body, stream=True) as answer:
                assert answer.status_code == 200
                for _ in answer.iter_lines():
                    now = time.monotonic()
                    self.gap, last = max(self.gap, now - last), now
                self.num_answers += 1

    def stop(self):
        self._is_over = True
        self._thread.join()


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
    client, before = Client(server), memory_of(worker)
    try:
        for spoil, way in zip(worst, WAYS, strict=False):
            told, answer = KINDS[spoil], server.post(*way(spoil.__name__))
            assert answer.status_code in (200, 400, 503), answer.text
            assert re.search(told, error_of(answer)), answer.text
            assert "\n" not in error_of(answer)
    finally:
        client.stop()
    assert client.num_answers and client.gap < GAP
    assert memory_of(worker) - before < 100_000
    assert "Traceback" not in server.output
    assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status_code == 200
