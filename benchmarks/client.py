"""Streams of many requests, read by one thread: as little work as a client can do."""

import json
import selectors
import socket
import time
import urllib.parse
from dataclasses import dataclass, field


@dataclass
class Reading:
    """What one response was. Times in seconds since all requests were sent."""

    arrivals: list[float] = field(default_factory=list)  # of each read that had a data frame
    data: bytes = b""
    end: float = 0.0

    @property
    def frames(self) -> int:
        return self.data.count(b"data: {")

    @property
    def status(self) -> int:
        return int(self.data.split(b" ", 2)[1])

    @property
    def usage(self) -> dict:
        """Of a stream that was asked to tell it."""
        start = self.data.rindex(b'"usage":{') + len(b'"usage":')
        return json.JSONDecoder().raw_decode(self.data[start:].decode())[0]


def post_all(url, path, bodies, timeout=600.0):
    """Send all of `bodies` at once, each on a connection of its own; read until all are closed."""
    parts = urllib.parse.urlsplit(url)
    selector = selectors.DefaultSelector()
    requests = []
    for body in bodies:
        data = json.dumps(body).encode()
        connection = socket.create_connection((parts.hostname, parts.port or 80))
        head = (
            f"POST {parts.path.rstrip('/')}{path} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            "Content-Type: application/json\r\nConnection: close\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        requests.append((connection, head.encode() + data))
    readings = []
    begin = time.perf_counter()
    for connection, request in requests:
        connection.sendall(request)
        connection.setblocking(False)
        readings.append(Reading())
        selector.register(connection, selectors.EVENT_READ, readings[-1])
    num_open = len(requests)
    while num_open:
        ready = selector.select(timeout)
        if not ready:
            raise TimeoutError(f"{num_open} streams brought nothing for {timeout} s")
        for key, _ in ready:
            reading, part = key.data, key.fileobj.recv(1 << 18)
            now = time.perf_counter() - begin
            if not part:
                selector.unregister(key.fileobj)
                key.fileobj.close()
                reading.end = now
                num_open -= 1
                continue
            reading.data += part
            if b"data: {" in part:
                reading.arrivals.append(now)
    selector.close()
    return readings


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else float("nan")
