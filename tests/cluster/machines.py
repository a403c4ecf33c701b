"""Machines as network namespaces on a bridge, each with its own HOME, state and processes."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from tests.conftest import DEMO, ROOT

NET = "10.77.0"
MODEL = "demo"
HOME = "swy"  # begins the names of namespaces and devices


def sh(*command, check=True):
    return subprocess.run(command, check=check, capture_output=True, text=True, timeout=60)


def refusal():
    """Why there can be no namespaces here; empty if there can."""
    name = f"{HOME}-probe{os.getpid()}"
    try:
        done = sh("ip", "netns", "add", name, check=False)
        if done.returncode:
            return done.stderr.strip()
        made = sh("ip", "-n", name, "link", "add", "x", "type", "veth", "peer", "y", check=False)
        sh("ip", "netns", "del", name)
    except OSError as reason:
        return str(reason)
    return made.stderr.strip()


class Machines:
    """A switch and `number` machines, 10.77.0.1 and on; the first is the head's."""

    def __init__(self, root, number, python_path=()):
        self.root = pathlib.Path(root)
        self.numbers = range(1, number + 1)
        self._python_path = os.pathsep.join([*python_path, str(ROOT)])
        self._processes = []
        sh("ip", "netns", "add", f"{HOME}-sw")
        sh("ip", "-n", f"{HOME}-sw", "link", "add", "br0", "type", "bridge")
        sh("ip", "-n", f"{HOME}-sw", "link", "set", "br0", "up")
        for one in self.numbers:
            self._add(one)
        self.key = self.root / "key"
        self.key.write_text("k" * 64 + "\n")
        self.key.chmod(0o600)

    def _add(self, one):
        own = f"{HOME}-n{one}"
        sh("ip", "netns", "add", own)
        sh("ip", "-n", own, "link", "set", "lo", "up")
        more = ("type", "veth", "peer", f"b{one}", "netns", f"{HOME}-sw")
        sh("ip", "-n", own, "link", "add", "e0", *more)
        sh("ip", "-n", f"{HOME}-sw", "link", "set", f"b{one}", "master", "br0", "up")
        sh("ip", "-n", own, "link", "set", "e0", "up")
        sh("ip", "-n", own, "addr", "add", f"{NET}.{one}/24", "dev", "e0")
        folder = self.folder(one)
        for name in ("home", "state", "run"):
            (folder / name).mkdir(parents=True)

    def folder(self, one):
        return self.root / f"n{one}"

    def settings(self, engines=2, more="", model="", head=""):
        """The same file on every machine, except for its folders."""
        for one in self.numbers:
            folder = self.folder(one)
            text = (
                f'link = "socket"\nengine_key_file = "{self.key}"\nsilence_timeout = 2.0\n'
                f'device = "cpu"\nmax_batch_size = 64\nmax_pending = 2048\ngrace = 30.0\n{more}\n'
                f'[[models]]\nname = "{MODEL}"\nmodel = "{DEMO}"\nat = ["cluster"]\n'
                f"engines = {engines}\ngpus_each = 0\n{model}\n"
                f'[cluster]\nhead = "{NET}.1"\nnetwork = "{NET}.0/24"\n'
                f'state_dir = "{folder}/state"\nrun_dir = "{folder}/run"\n{head}\n'
            )
            fresh = folder / "settings.new"
            fresh.write_text(text)
            fresh.rename(folder / "switchyard.toml")

    def inside(self, one, *command, name=None, **more):
        """A process on a machine; its output is in a file if it has a name."""
        folder = self.folder(one)
        kept = ("PATH", "LANG", "OMP_NUM_THREADS", "LD_LIBRARY_PATH")
        environment = {k: v for k, v in os.environ.items() if k in kept}
        environment |= {
            "HOME": f"{folder}/home",
            "TMPDIR": f"{folder}/state",
            "PYTHONPATH": self._python_path,
            "SWITCHYARD_CONFIG": f"{folder}/switchyard.toml",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            **more.pop("environment", {}),
        }
        with contextlib.ExitStack() as stack:
            log = subprocess.PIPE
            if name:
                log = stack.enter_context(open(folder / f"{name}.log", "ab"))
            process = subprocess.Popen(
                ["ip", "netns", "exec", f"{HOME}-n{one}", *command],
                **{"env": environment, "stdout": log, "stderr": subprocess.STDOUT, "cwd": folder},
                **more,
            )
        self._processes.append(process)
        return process

    def switchyard(self, one, *arguments, name=None, **more):
        command = [sys.executable, "-m", "switchyard", *arguments]
        return self.inside(one, *command, name=name, **more)

    @property
    def foreground(self):
        """The heads and nodes that run, or have run."""
        return [one for one in self._processes if {"head", "node"} & {*one.args}]

    def run(self, one, *arguments, timeout=120):
        """A command to its end: its status and what it wrote."""
        process = self.switchyard(one, *arguments, text=True)
        try:
            told, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            return None, process.communicate()[0]
        return process.returncode, told

    def status(self, one=1):
        code, told = self.run(one, "cluster", "status", "--json")
        return json.loads(told.splitlines()[-1]) if code == 0 else None

    def log(self, one, name):
        path = self.folder(one) / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def pids(self, one, *words):
        """Processes on a machine whose command line has all words."""
        found = []
        for pid in map(int, sh("ip", "netns", "pids", f"{HOME}-n{one}").stdout.split()):
            try:
                line = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if all(word in line for word in words):
                found.append(pid)
        return found

    def kill_all(self, one):
        """The plug of a machine is pulled: nothing on it runs any more."""
        while pids := self.pids(one):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def cut(self, one, is_cut=True):
        way = "down" if is_cut else "up"
        sh("ip", "-n", f"{HOME}-sw", "link", "set", f"b{one}", way)

    def close(self):
        for one in self.numbers:
            self.kill_all(one)
        for process in self._processes:
            process.wait(30)
            if process.stdout:
                process.stdout.close()
        for name in (*(f"n{one}" for one in self.numbers), "sw"):
            sh("ip", "netns", "del", f"{HOME}-{name}", check=False)
