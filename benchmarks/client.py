"""Reads the streams of many requests on one thread, with as little work as a client can do."""

import json
import re
import selectors
import socket
import time
import urllib.parse
from dataclasses import dataclass, field

FRAME = b"data: {"
USAGE = re.compile(rb'"usage":\s*{')


@dataclass
class Reading:
    """One response. Times in seconds since the start of all."""

    begin: float
    body: dict
    # Of each read its time, and the number of data frames
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    end: float = 0.0
    error: str = ""  # error of the connection

    @property
    def data(self) -> bytes:
        return b"".join(self.parts)

    @property
    def frames(self) -> int:
        return self.data.count(FRAME)

    @property
    def status(self) -> int:
        words = self.data[:20].split(b" ", 2)
        return int(words[1]) if len(words) > 1 else 0

    @property
    def usage(self) -> dict | None:
        """The usage at the end of a stream that asked for it."""
        data = self.data
        starts = [match.end() - 1 for match in USAGE.finditer(data)]
        return json.JSONDecoder().raw_decode(data[starts[-1] :].decode())[0] if starts else None

    @property
    def fault(self) -> str:
        """Why this was not a complete stream; empty if it was."""
        data, status = self.data, self.status
        if self.error:
            return self.error
        if status != 200:
            body = data.partition(b"\r\n\r\n")[2].decode(errors="replace")
            return f"status {status}: {body[:300]}"
        if b'data: {"error"' in data:
            return "an error event"
        return "" if b"data: [DONE]" in data else "cut off"


class _Connection:
    def __init__(self, reading, request, address):
        self.reading = reading
        self.unsent = memoryview(request)
        self.socket = socket.socket()
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.socket.connect_ex(address)


class Client:
    """Sends bodies to `path`, each on its own connection, and reads until all are closed."""

    def __init__(self, url, path, key=None, timeout=600.0):
        parts = urllib.parse.urlsplit(url)
        self._address = (socket.gethostbyname(parts.hostname), parts.port or 80)
        self._head = (
            f"POST {parts.path.rstrip('/')}{path} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            "Content-Type: application/json\r\nConnection: close\r\n"
            + (f"Authorization: Bearer {key}\r\n" if key else "")
        )
        self._timeout = timeout

    def post(self, bodies, num_streams):
        """Readings of the responses to `bodies`, in the order of their ends; `num_streams` at a
        time.
        """
        bodies = iter(bodies)
        begin = time.perf_counter()
        with selectors.DefaultSelector() as selector:
            for _ in range(num_streams):
                self._open(selector, bodies, begin)
            while selector.get_map():
                ready = selector.select(self._timeout)
                if not ready:
                    raise TimeoutError(f"no stream brought anything for {self._timeout} s")
                for key, _ in ready:
                    if not self._go_on(selector, key, begin):
                        selector.unregister(key.fileobj)
                        key.fileobj.close()
                        self._open(selector, bodies, begin)
                        yield key.data.reading

    def _open(self, selector, bodies, begin):
        body = next(bodies, None)
        if body is None:
            return
        data = json.dumps(body).encode()
        request = f"{self._head}Content-Length: {len(data)}\r\n\r\n".encode() + data
        connection = _Connection(Reading(time.perf_counter() - begin, body), request, self._address)
        selector.register(connection.socket, selectors.EVENT_WRITE, connection)

    def _go_on(self, selector, key, begin):
        """Returns whether the stream goes on."""
        connection, reading = key.data, key.data.reading
        try:
            if connection.unsent:
                connection.unsent = connection.unsent[key.fileobj.send(connection.unsent) :]
                if not connection.unsent:
                    selector.modify(key.fileobj, selectors.EVENT_READ, connection)
                return True
            part = key.fileobj.recv(1 << 18)
        except OSError as error:
            part, reading.error = b"", f"{type(error).__name__}: {error}"
        now = time.perf_counter() - begin
        if not part:
            reading.end = now
            return False
        reading.parts.append(part)
        frames = part.count(FRAME)
        if frames:
            reading.arrivals.append((now, frames))
        return True


def post_all(url, path, bodies, timeout=600.0):
    """Sends all `bodies` at once. Readings of the responses, in the order of their ends."""
    return list(Client(url, path, timeout=timeout).post(bodies, len(bodies)))


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else float("nan")
