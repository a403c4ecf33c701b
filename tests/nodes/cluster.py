"""Three boxes with an engine each, and servers on the first two."""

import contextlib
import pathlib
import secrets
import signal
import time

import requests

from tests.live.conftest import GUNICORN
from tests.nodes.boxes import SWITCH
from tests.nodes.load import TOKENS
from tests.nodes.name_server import NameServer

PORT, SERVER_PORT = 7000, 8000
PLACES = 8  # of an engine
SILENCE = 2.0  # seconds
IGNORED = "the engines stay as they are"
WAIT = 90.0  # seconds, at most, for what must come


class Cluster:
    """Server 1 reads its engines from a file, server 2 from a name server."""

    def __init__(self, boxes, directory, model):
        self.boxes = boxes
        self.source = pathlib.Path(directory, "engines")
        self.names = NameServer(SWITCH)
        key = pathlib.Path(directory, "key")
        key.touch(0o600)
        key.write_text(secrets.token_hex(32))
        self._settings = {
            "model": model,
            "engine_key_file": key,
            "max_batch_size": PLACES,
            "silence_timeout": SILENCE,
        }
        self.name(*boxes)
        self.engines = {i: self.start_engine(i) for i in boxes}
        sources = {1: f"file:{self.source}", 2: f"dns:engines.test:{PORT}"}
        self.servers = {i: self._start_server(i, at) for i, at in sources.items()}
        for server in self.servers.values():
            server.wait_until_answers("/health/live")

    def start_engine(self, number):
        box = self.boxes[number]
        arguments = ["tests.nodes.engine", "engine", "--at", self.at(number)]
        return box.start(PORT, *arguments, link="auto", **self._settings)

    def _start_server(self, number, source):
        module, *arguments = GUNICORN[2:]
        at = f'["{source}"]'
        settings = {"link": "socket", "at": at, "reserve_threads": 64, **self._settings}
        return self.boxes[number].start(SERVER_PORT, module, *arguments, **settings)

    def at(self, number):
        return f"{self.boxes[number].address}:{PORT}"

    def name(self, *numbers):
        """Have both sources name these boxes."""
        fresh = self.source.with_suffix(".fresh")
        fresh.write_text("".join(f"{self.at(i)}  # box {i}\n" for i in numbers))
        fresh.rename(self.source)
        self.names.records = [self.boxes[i].address for i in numbers]

    def end_engine(self, number):
        """As systemd does it. Returns its exit status."""
        return self.engines[number].stop()

    def replace_engine(self, number):
        self.engines[number] = self.start_engine(number)

    def rows(self, server):
        """What a server says of its engines, by address."""
        [model] = requests.get(f"{server.url}/v1/models", timeout=20).json()["data"]
        return {one["at"]: one for one in model["meta"].get("replicas", ())}

    def are_served(self, *numbers):
        """Whether both servers use exactly the engines of these boxes, as they run now."""
        pids = {self.at(i): self.engines[i].process.pid for i in numbers}
        return all(
            {at: row["pid"] for at, row in self.rows(server).items() if is_ready(row)} == pids
            for server in self.servers.values()
        )

    def wait_until_served(self, *numbers):
        wait_until(lambda: self.are_served(*numbers), self.servers[1])

    def spoil_sources(self, spoil_file, records):
        """Until both servers have logged that their source is of no use."""
        before = {one: one.output.count(IGNORED) for one in self.servers.values()}
        spoil_file()
        self.names.records = records
        for server, number in before.items():
            wait_until(
                lambda server=server, number=number: server.output.count(IGNORED) > number, server
            )

    def wait_until_busy(self, number):
        """Until both servers have jobs at an engine, and more jobs are in the midst of their texts
        than the other engines have places for: so some of its own jobs are.
        """
        for server in self.servers.values():
            wait_until(lambda server=server: self.rows(server)[self.at(number)]["jobs"] > 1, server)
        most = PLACES * (len(self.engines) - 1)
        wait_until(lambda: self.num_begun() > most, self.servers[1])

    def num_begun(self):
        found = [
            requests.get(f"{server.url}/v1/requests", timeout=20).json()["data"]
            for server in self.servers.values()
        ]
        return sum(0 < job["completion_tokens"] < TOKENS - 10 for jobs in found for job in jobs)

    def wait_until_told(self, number):
        """Until no server takes an engine for ready."""
        for server in self.servers.values():
            wait_until(
                lambda server=server: not is_ready(self.rows(server)[self.at(number)]), server
            )

    def close(self):
        """Returns the exit statuses."""
        everything = [*self.servers.values(), *self.engines.values()]
        for one in everything:
            with contextlib.suppress(ProcessLookupError):
                one.process.send_signal(signal.SIGTERM)
        statuses = [one.process.wait(60) for one in everything]
        self.names.close()
        return statuses


def is_ready(row):
    return row["state"] == "ready"


def wait_until(condition, server):
    deadline = time.monotonic() + WAIT
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"it did not come to that:\n{server.output[-4000:]}")
        time.sleep(0.05)
