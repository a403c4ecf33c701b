"""A process of another user at the address of a shared engine. It ends with its standard input.

    another_user.py USER listen|connect PATH STAGE MARKER   sends a pickle that makes MARKER
    another_user.py USER engine|server PATH KEY             has the key, in hexadecimal digits

It is started as root, unless USER is empty.
"""

import contextlib
import os
import pathlib
import pickle
import socket
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).parents[3]))

from switchyard.engine.links.hosts import handshake, knock
from switchyard.engine.links.hosts.door import Door
from switchyard.engine.links.hosts.introduction import Hello, Welcome
from switchyard.engine.links.hosts.peer import Stranger
from switchyard.engine.links.wire import HEAD, Wire

FINGERPRINT = "fp_1"


class Mine:
    """Whose pickle runs code where it is read."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def frame(marker):
    data = pickle.dumps(Mine(marker))
    return HEAD.pack(len(data)) + data


def play(connection, stage, marker, meet):
    """Sends the pickle at a stage of the handshake. Returns the bytes that came."""
    came = b""
    with contextlib.suppress(OSError, EOFError, Stranger):
        if stage == "hello":
            connection.sendall(
                handshake._GREETING.pack(b"switchyard", handshake.PROTOCOL, b"n" * 32)
            )
        elif stage == "end":
            meet(connection)
        connection.sendall(frame(marker))
    with contextlib.suppress(OSError):
        while part := connection.recv(4096):
            came += part
    return came


def listen(path, stage, marker):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        os.chmod(path, 0o666)
        listener.listen(8)
        tell("listens")
        while True:
            connection, _ = listener.accept()
            with connection:
                play(
                    connection,
                    stage,
                    marker,
                    lambda one: handshake.meet_server(one, b"", lambda _: Welcome(1)),
                )
            tell("a server came")


def connect(path, stage, marker):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        came = play(
            connection,
            stage,
            marker,
            lambda one: handshake.meet_engine(one, b"", Hello(1, FINGERPRINT)),
        )
    tell(f"{len(came)} bytes came")


def engine(path, key):
    def admit(connection, seals, pid):
        with Wire(connection, seals) as wire:
            wire.send(f"for {pid}")

    Door(f"unix:{path}", bytes.fromhex(key), FINGERPRINT, admit, lambda: True).open()
    os.chmod(path, 0o666)
    tell("listens")


def server(path, key):
    try:
        wire, _ = knock.knock(f"unix:{path}", bytes.fromhex(key), FINGERPRINT)
        with wire:
            tell(repr(wire.receive_one(20)))
    except Stranger as reason:
        tell(str(reason))


def tell(line):
    print(line, flush=True)


def run(user, what, *arguments):
    if user:
        os.setgroups([])
        os.setresgid(int(user), int(user), int(user))
        os.setresuid(int(user), int(user), int(user))
    if what in ("listen", "connect"):
        handshake.check_peer = lambda *_: None  # it goes as far as it can
    target = globals()[what]
    threading.Thread(target=target, args=arguments, daemon=True).start()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    run(*sys.argv[1:])
