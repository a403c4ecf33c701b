"""docs/cluster.md as a new operator follows it: three boxes by addresses and DNS, one pulled."""

import concurrent.futures
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest
import requests

from tests.conftest import DEMO
from tests.docs.pages import ROOT, blocks
from tests.nodes.boxes import NETWORK, SWITCH
from tests.nodes.cluster import wait_until
from tests.nodes.name_server import NameServer

pytestmark = pytest.mark.nodes

PLACE = "/etc/switchyard"
STREAMS = 16
TOKENS = 200


class Operator:
    """Runs what the page says in one box, where the page's first box has this one's address."""

    def __init__(self, box):
        self._box = box
        self._place = box.directory / "switchyard"
        self._place.mkdir()
        shutil.copytree(DEMO, self._place / "llama-8b", copy_function=shutil.copyfile)
        self._running = []
        self._environment = {
            "PATH": os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT),
            "HOME": str(box.directory),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }

    @property
    def output(self):
        return self._log.read_text()

    @property
    def _log(self):
        return self._box.directory / "log"

    def _here(self, text):
        text = text.replace(f"{PLACE}/", f"{self._place}/").replace(PLACE, str(self._place))
        return text.replace("/models/", f"{self._place}/").replace("10.0.0.", NETWORK)

    def write(self, text):
        (self._place / "switchyard.toml").write_text(self._here(text))

    def copy_key(self, other):
        shutil.copy2(self._place / "engine.key", other._place)

    def start(self, command):
        own = self._here(command.replace("10.0.0.1", self._box.address))
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [*self._box.enter, f"--wd={self._place}", "sh", "-c", own],
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._running.append(process)
        return process

    def run(self, command):
        assert self.start(command).wait(60) == 0, self.output

    def close(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            for one in self._running:
                with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(one.pid, number)
                    one.wait(20)


def ask(url, number):
    """How a stream ended."""
    body = {
        "messages": [{"role": "user", "content": f"Tell me story {number}."}],
        **{"max_tokens": TOKENS, "stream": True, "ignore_eos": True},
    }
    answer = requests.post(f"{url}/v1/chat/completions", json=body, timeout=100)
    assert answer.status_code == 200, answer.text
    if '"error"' in answer.text:
        return "told"
    return "whole" if "[DONE]" in answer.text else "cut"


def states_of(url):
    [model] = requests.get(f"{url}/v1/models", timeout=20).json()["data"]
    return [one["state"] for one in model["meta"]["replicas"]]


def is_busy(url):
    """Whether all streams have text."""
    rows = requests.get(f"{url}/v1/requests", timeout=20).json()["data"]
    return len(rows) > STREAMS and all(row["completion_tokens"] > 0 for row in rows)


def is_ready(url):
    with contextlib.suppress(requests.ConnectionError):
        return requests.get(f"{url}/health/ready", timeout=20).ok


@pytest.fixture
def operators(boxes):
    made = {i: Operator(box) for i, box in boxes.items()}
    yield made
    for one in made.values():
        one.close()


@pytest.fixture
def names(boxes):
    server = NameServer(SWITCH)
    server.records = [box.address for box in boxes.values()]
    yield server
    server.close()


def test_three_boxes_serve_and_one_is_pulled(boxes, operators, names):
    key, settings, engine, server, _, sources, *_ = (one.text for one in blocks("docs/cluster.md"))
    operators[1].run(key)
    for i in (2, 3):
        operators[1].copy_key(operators[i])
    for operator in operators.values():
        operator.write(settings)
        operator.start(engine)
    [dns] = [one for one in sources.replace("]", '"').split('"') if one.startswith("dns:")]
    operators[2].write(re.sub("(?m)^at = .*$", f'at = ["{dns}"]', settings))
    for i in (1, 2):
        operators[i].start(server)
    urls = {i: f"http://{boxes[i].address}:8000" for i in (1, 2)}
    for i, url in urls.items():
        wait_until(lambda url=url: is_ready(url), operators[i])
        wait_until(lambda url=url: states_of(url) == ["ready"] * 3, operators[i])
        operators[i].run("switchyard check")
    with concurrent.futures.ThreadPoolExecutor(2 * STREAMS) as pool:
        asked = [pool.submit(ask, url, i) for i in range(STREAMS) for url in urls.values()]
        wait_until(lambda: is_busy(urls[1]), operators[1])
        boxes[3].cut()
        ends = [one.result() for one in asked]
        assert set(ends) == {"whole", "told"}
        after = [pool.submit(ask, url, i) for i in range(4) for url in urls.values()]
        assert {one.result() for one in after} == {"whole"}
    boxes[3].heal()
    for i, url in urls.items():
        wait_until(lambda url=url: states_of(url) == ["ready"] * 3, operators[i])
