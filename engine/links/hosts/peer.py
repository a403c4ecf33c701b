"""The process at the other end of a connection, and its user according to the kernel."""

import os
import socket
import struct

from switchyard.engine.errors import ModelError

ROOT = 0
UNMAPPED = 65534  # what a user namespace shows for each user that it lacks
ALL_USERS = "4294967295"  # in /proc/self/uid_map on a system without such a namespace

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: unix(7)


class Stranger(ModelError):
    """The other end belongs to another user, isn't Switchyard, or has another protocol, key or
    model.
    """


class OtherKey(Stranger):
    """The other end has a different key."""


def check_peer(connection: socket.socket, key: bytes) -> None:
    """Without a key, accepts only processes of this user and of root, over a Unix socket. Must be
    called before anything is read. Raises Stranger, OSError.
    """
    if key:
        return  # the other end must prove that it has the key
    if connection.family != socket.AF_UNIX:
        raise Stranger("TCP needs a key: set engine_key_file")
    uid, own = _uid_of(connection), os.geteuid()
    if uid not in (own, ROOT):
        whose = "an unknown user" if uid is None else f"user {uid}"
        raise Stranger(
            f"the process at the other end belongs to {whose}, but this process belongs to user"
            f" {own}: set engine_key_file to connect them"
        )


def _uid_of(connection: socket.socket) -> int | None:
    """The user who has connected, or who is listening, or None if the kernel doesn't know."""
    if not hasattr(socket, "SO_PEERCRED"):  # not Linux
        return None
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(data)
    return None if uid == UNMAPPED and not _has_all_users() else int(uid)


def _has_all_users() -> bool:
    try:
        with open("/proc/self/uid_map") as file:
            return ALL_USERS in file.read().split()
    except OSError:
        return False
