"""Start Python commands as forks of a Python that has imported torch and the application. A server
then takes 0.6 seconds of a core to start and end, not 4.7.

Each command is its own process, with its arguments, environment, directory and exit status.
Variables that Python itself reads as it starts have no effect. Run as a program, this module is the
Python that forks: one for each process of pytest.
"""

import atexit
import gc
import importlib
import json
import os
import pathlib
import runpy
import select
import signal
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent.parent
DEMO = ROOT / "models" / "demo"
IMPORTS = ("torch", "gunicorn.app.wsgiapp", "switchyard.cli.serve", "switchyard.server.worker")
MAX_BYTES = 1 << 17  # of a command with its environment


class Process:
    """A command that runs: those names of subprocess.Popen that tests use."""

    def __init__(self, pid, status):
        self.pid = pid
        self.returncode = None
        self._status = status

    def poll(self):
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.returncode = int(os.read(self._status, 16))
            os.close(self._status)
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None:
            select.select([self._status], [], [], timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired("a warm process", timeout)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class Warm:
    """The Python with the imports. It starts with the first command, if not before."""

    def __init__(self):
        self._channel = None

    def can_run(self, command):
        """Whether it is `python -m MODULE …`."""
        return command[:2] == [sys.executable, "-m"]

    def run(self, command, directory, environment, output):
        """As subprocess.Popen; `output` is a file for standard output and error."""
        self.start()
        ours, theirs = os.pipe()
        order = json.dumps([command[2:], str(directory), environment]).encode()
        assert len(order) < MAX_BYTES
        socket.send_fds(self._channel, [order], [output.fileno(), theirs])
        os.close(theirs)
        return Process(int(os.read(ours, 16)), ours)

    def start(self):
        """Once; later commands have the namespaces of this moment."""
        if self._channel is not None:
            return
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.live.warm"]
        process = subprocess.Popen(command, stdin=theirs, cwd=ROOT)
        theirs.close()
        atexit.register(lambda: (self._channel.close(), process.wait()))


WARM = Warm()


def serve(channel):
    """Fork for each order, until pytest ends. Returns in the forks alone, with what they run."""
    for name in IMPORTS:
        importlib.import_module(name)
    # Each fork knows then that this directory has passed.
    trial = importlib.import_module("switchyard.app.chat.trial")
    importlib.import_module("switchyard.engine").try_directories([str(DEMO)], trial.READERS)
    gc.freeze()
    running = set()
    while True:
        order, files, *_ = socket.recv_fds(channel, MAX_BYTES, 2)
        running -= {pid for pid in running if os.waitpid(pid, os.WNOHANG) != (0, 0)}
        if not order:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            return become(order, *files)
        running.add(pid)
        for file in files:
            os.close(file)


def become(order, output, status):
    """Fork again, and return in that process alone. This one waits for its end."""
    if pid := os.fork():
        os.write(status, b"%16d" % pid)  # all that is read first, however soon the end follows
        _, ended = os.waitpid(pid, 0)
        os.write(status, b"%d" % os.waitstatus_to_exitcode(ended))
        os._exit(0)
    os.close(status)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((nothing, output, output)):  # the first was the channel
        os.dup2(file, number)
    os.close(nothing)
    os.close(output)
    arguments, directory, environment = json.loads(order)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    config = importlib.import_module("gunicorn.config")
    config.Chdir.default = directory  # which it was imported in, else
    sys.path[:1] = [directory, environment["PYTHONPATH"]]
    return arguments


def leave(status):
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main():
    """Run `python -m MODULE …` in each fork. The fork ends after the handlers of `atexit`: to take
    torch's modules apart as well needs half a second of a core.
    """
    status = 1
    atexit.register(lambda: leave(status))  # the first, which is called last
    module, *sys.argv[1:] = serve(socket.socket(fileno=0))
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise


if __name__ == "__main__":
    main()
