"""Machines on one network: network namespaces behind a bridge. Needs root, and Linux."""

import contextlib
import ctypes
import os
import pathlib
import signal
import subprocess
import sys

from tests.live.conftest import Server

NETWORK = "10.77.0."
SWITCH = f"{NETWORK}254"  # the address of this process
CLONE_NEWNET = 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)


def call(name, *arguments):
    """A system call that Python has from 3.12 on. Raises OSError."""
    if getattr(_libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@contextlib.contextmanager
def network(number, directory):
    """Boxes from 1 to `number`, by their numbers. Threads that this thread starts inside reach
    them, too; the machine's own network is untouched. Raises OSError where namespaces are refused.
    """
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, home)
        call("unshare", CLONE_NEWNET)
        stack.callback(call, "setns", home, CLONE_NEWNET)
        ip("link set lo up")
        ip("link add bridge type bridge")
        ip(f"addr add {SWITCH}/24 dev bridge")
        ip("link set bridge up")
        boxes = {i: Box(i, directory / f"box{i}") for i in range(1, number + 1)}
        for box in boxes.values():
            stack.callback(box.close)
        yield boxes


class Box:
    """A namespace of the network with one of the mounts, as long as `_keeper` runs."""

    def __init__(self, number, directory):
        self.address = f"{NETWORK}{number}"
        self.directory = directory
        directory.mkdir()
        self._cable = f"cable{number}"
        self._servers = []
        command = ["unshare", "--net", "--mount", "sh", "-c", "echo; exec cat"]
        pipe = subprocess.PIPE  # the keeper ends with this process
        self._keeper = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
        if not self._keeper.stdout.readline():
            raise OSError(self._keeper.communicate()[1].decode().strip())
        pid = self._keeper.pid
        ip(f"link add {self._cable} type veth peer name eth0 netns {pid}")
        ip(f"link set {self._cable} master bridge up")
        self.run("ip link set lo up")
        self.run(f"ip addr add {self.address}/24 dev eth0")
        self.run("ip link set eth0 up")
        resolver = directory / "resolv.conf"
        resolver.write_text(f"nameserver {SWITCH}\noptions timeout:1 attempts:1\n")
        self.run(f"mount --bind {resolver} /etc/resolv.conf")

    @property
    def enter(self):
        """The beginning of a command that runs inside."""
        return ["nsenter", "--net", "--mount", "--target", str(self._keeper.pid)]

    def run(self, command):
        subprocess.run([*self.enter, *command.split()], check=True)

    def start(self, port, module, *arguments, **settings):
        """`python -m MODULE …`, with the settings of a server."""
        inside = [sys.executable, "-m", "tests.nodes.inside", str(self._keeper.pid)]
        bind = f"{self.address}:{port}"
        server = Server([*inside, module, *arguments], self.directory, port, bind=bind, **settings)
        server.url = f"http://{bind}"
        self._servers.append(server)
        return server

    def cut(self):
        ip(f"link set {self._cable} down")

    def heal(self):
        ip(f"link set {self._cable} up")

    def close(self):
        for server in self._servers:
            if server.process.poll() is None:
                server.stop(signal.SIGKILL)
        self._keeper.communicate()


def ip(command):
    subprocess.run(["ip", *command.split()], check=True)


def enter(pid):
    """Be in a box, from now on."""
    directory = os.getcwd()
    for kind in ("net", "mnt"):
        with pathlib.Path(f"/proc/{pid}/ns/{kind}").open() as file:
            call("setns", file.fileno(), 0)
    os.chdir(directory)
