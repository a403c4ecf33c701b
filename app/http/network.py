"""The network of an address: the unit of shares and counts."""

import functools
import ipaddress

PREFIX = 64  # bits of an IPv6 address that the network assigns; the client chooses the others
MAX_NETWORKS = 4096  # cached results, because reading an address takes some microseconds


@functools.lru_cache(MAX_NETWORKS)
def network_of(address: str) -> str:
    """The addresses that count as one client: an IPv4 address, even in IPv6 notation, or the /64 of
    an IPv6 address. Any other text is returned unchanged.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed), PREFIX), strict=False))
