"""The network of an address: the unit of shares and counts."""

import functools
import ipaddress

PREFIX = 64  # bits of an IPv6 address that a network gives; its client chooses the others
MAX_NETWORKS = 4096  # kept, since reading an address takes some microseconds


@functools.lru_cache(MAX_NETWORKS)
def network_of(address: str) -> str:
    """What one client has of addresses: an IPv4 address, also as IPv6 writes it, or the /64 of an
    IPv6 address. Anything else stays as it is.
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
