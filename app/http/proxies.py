"""The address of a client behind trusted proxies."""

import ipaddress
from collections.abc import Sequence

import flask

from switchyard.app.http.client import is_unix
from switchyard.app.operation_settings import UNIX

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Proxies:
    """The proxies in the `trusted_proxies` setting."""

    def __init__(self, trusted: Sequence[str]) -> None:
        self._trusts_unix = UNIX in trusted
        self._networks = [ipaddress.ip_network(name) for name in trusted if name != UNIX]

    def client_of(self, request: flask.Request) -> str:
        """The rightmost address in `X-Forwarded-For` that is not a trusted proxy's address. For a
        request that doesn't come from a trusted proxy, this is the sender's address.

        A client can forge all addresses to the left of that one, and the whole header of a request
        that bypasses the proxies.
        """
        peer = _address(request.remote_addr or "")
        is_trusted = self._trusts_unix if is_unix(request.environ) else self._trusts(peer)
        client = str(peer) if peer is not None else request.remote_addr or ""
        if not is_trusted:
            return client
        for name in reversed(request.headers.get("X-Forwarded-For", "").split(",")):
            address = _address(name.strip())
            if address is None:  # a trusted proxy writes only addresses
                return client
            client = str(address)
            if not self._trusts(address):
                return client
        return client

    def _trusts(self, address: Address | None) -> bool:
        return address is not None and any(address in network for network in self._networks)


def _address(name: str) -> Address | None:
    """The address without its port. None if the text is not an address. An IPv4-mapped IPv6 address
    becomes IPv4.
    """
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
