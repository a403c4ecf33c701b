"""This machine's addresses, and the ports that accept connections there."""

import ipaddress
import re
import socket
from collections.abc import Sequence

from switchyard.app.table_settings import RAYS_PORTS, ClusterSettings

KNOCK = 0.2  # seconds that a port of this machine has to answer
LOCAL = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")


def addresses_here(table: str | None = None) -> list[str]:
    """Returns all of this machine's IPv4 addresses. `table`: the text of /proc/net/fib_trie."""
    if table is None:
        with open("/proc/net/fib_trie") as file:
            table = file.read()
    return list(dict.fromkeys(LOCAL.findall(table)))


def answers_outside(cluster: ClusterSettings, here: Sequence[str]) -> dict[str, list[int]]:
    """For each address of this machine outside the cluster's network, the cluster's ports that
    accept connections there. This machine can't see whether a firewall protects these ports.
    """
    ports = [*RAYS_PORTS[0], *cluster.engine_ports, *RAYS_PORTS[-1]]
    outside = [ipaddress.IPv4Address(one) for one in here]
    found = {
        str(one): [port for port in ports if _answers(str(one), port)]
        for one in outside
        if one not in cluster.network and not one.is_loopback
    }
    return {address: ports for address, ports in found.items() if ports}


def _answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), KNOCK).close()
    except OSError:
        return False
    return True
