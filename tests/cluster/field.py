"""A head, two machines with engines, and a server beside the head: what tests and the benchmark of
the cluster fail, update and scale.
"""

import json
import os
import signal
import sys
import time
from contextlib import contextmanager

from tests.cluster.machines import NET, Machines
from tests.cluster.outcome import nothing_lost
from tests.conftest import ROOT

URL = "http://127.0.0.1:8000"  # inside the head's machine
HEAD, NODE = "switchyard\0cluster\0head", "switchyard\0cluster\0node"  # command lines
ASK = """
import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())
"""


def parent_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


class Field:
    """Engines are (address, pid, state, jobs) as the server sees them."""

    def __init__(self, root):
        self.machines = Machines(root, 3, [str(ROOT / "tests" / "cluster" / "telling")])

    def start(self, engines=2):
        self.machines.settings(engines)
        self.start_head()
        for one in (2, 3):
            self.start_node(one)
        self.wait_for_nodes(3)
        self.apply()
        self.start_server()
        self.wait_for_engines(engines)

    def start_head(self, *arguments):
        self.machines.switchyard(1, "cluster", "head", *arguments, name="head")

    def start_server(self):
        self.server = self.machines.switchyard(
            1, "serve", name="server", environment={"SWITCHYARD_BIND": "127.0.0.1:8000"}
        )

    def server_pids(self):
        """The server's processes: of gunicorn, and those that it has started."""
        found = {self.server.pid}
        while more := {pid for pid in self.machines.pids(1) if parent_of(pid) in found} - found:
            found |= more
        return found

    def start_node(self, one, *inside):
        """`inside`: a command that runs the node, its last arguments."""
        node = [sys.executable, "-m", "switchyard", "cluster", "node", "--engines", "2"]
        return self.machines.inside(one, *inside, *node, name="node")

    def stop_node(self, one):
        """End `cluster node` on a machine, by SIGTERM."""
        [pid] = self.machines.pids(one, NODE)
        self.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 60
        while self.machines.pids(one, NODE):
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.1)

    def restart_node(self, one, *inside):
        self.stop_node(one)
        self.start_node(one, *inside)
        self.wait_for_nodes(3)

    def wait_for_nodes(self, number, seconds=120):
        deadline = time.monotonic() + seconds
        while True:
            found = self.machines.status()
            if found and len(found["nodes"]) == number:
                return
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.5)

    def apply(self, *arguments, status=0):
        code, told = self.machines.run(1, "cluster", "apply", *arguments, timeout=240)
        assert code == status, (code, told, self.logs())
        return told

    def scale(self, engines, **more):
        """Apply this number. Returns them once they are ready."""
        self.machines.settings(engines, **more)
        self.apply()
        return self.wait_for_engines(engines)

    def engines(self):
        """Those that the server has; none if it doesn't answer."""
        told, _ = self.machines.inside(
            1, sys.executable, "-c", ASK, f"{URL}/v1/models", text=True
        ).communicate(timeout=30)
        try:
            [model] = json.loads(told)["data"]
        except ValueError:
            return []
        return [
            tuple(one[name] for name in ("at", "pid", "state", "jobs"))
            for one in model["meta"].get("replicas", [])
        ]

    def wait_for_engines(self, number, without=(), seconds=120):
        """Until so many are ready, and no process of `without`. Returns them."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.engines()
            ready = [one for one in found if one[2] == "ready"]
            if len(ready) == len(found) == number and not {one[1] for one in ready} & set(without):
                return ready
            assert time.monotonic() < deadline, (found, self.machines.status(), self.logs())
            time.sleep(0.25)

    @contextmanager
    def load(self, number=60, tokens=300, seconds=0.0):
        """Streams meanwhile. Yields a dictionary, which has the result after the block."""
        command = ["-m", "tests.cluster.streams", URL, str(number), str(tokens), str(seconds)]
        client = self.machines.inside(1, sys.executable, *command, text=True)
        result = {}
        time.sleep(2.5)  # until they run
        try:
            yield result
        finally:
            told, _ = client.communicate(timeout=200)
        result |= json.loads(told.strip().splitlines()[-1])

    def check_serving(self):
        """Streams are whole."""
        with self.load(40, 100) as result:
            pass
        nothing_lost(result)

    def an_engine(self):
        """The process of the busiest engine, the number of its machine, and its jobs."""
        ready = [one for one in self.engines() if one[2] == "ready"]
        at, pid, _, jobs = max(ready, key=lambda one: one[3])
        return pid, int(at.partition(":")[0].rpartition(".")[2]), jobs

    def on(self, machine):
        """The engines on a machine."""
        return [one for one in self.engines() if one[0].startswith(f"{NET}.{machine}:")]

    def supervisor_of(self, pid):
        return parent_of(pid)

    def kill(self, pid, number=signal.SIGKILL):
        os.kill(pid, number)

    def kill_state(self):
        """Kill what holds the cluster's state, on the head's machine."""
        for pid in self.machines.pids(1, "gcs_server"):
            os.kill(pid, signal.SIGKILL)

    def logs(self):
        parts = [(1, "head"), (2, "node"), (3, "node"), (1, "server")]
        return "\n".join(
            f"== {name} of {one}\n{self.machines.log(one, name)[-2500:]}" for one, name in parts
        )

    def close(self):
        self.machines.close()
