"""A name server of one name, whose addresses a test sets."""

import socket
import struct
import threading

A = 1  # a kind of records


class NameServer:
    """Answers at port 53 of `address`, on a thread. With `records` None it is silent."""

    def __init__(self, address):
        self.records = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, 53))
        self._thread = threading.Thread(target=self._run, name="name server")
        self._thread.start()

    def _run(self):
        while (received := self._socket.recvfrom(512))[0]:
            query, client = received
            if (records := self.records) is None:
                continue
            end = query.index(b"\0", 12) + 5  # of the question
            [kind] = struct.unpack_from("!H", query, end - 4)
            found = [socket.inet_aton(one) for one in records if kind == A]
            head = query[:2] + struct.pack("!HHHHH", 0x8180, 1, len(found), 0, 0)
            # The name of the question, no seconds to live
            parts = [struct.pack("!HHHIH", 0xC00C, A, 1, 0, 4) + one for one in found]
            self._socket.sendto(head + query[12:end] + b"".join(parts), client)

    def close(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()
