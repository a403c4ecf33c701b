"""A client of /v1/stream over a real socket."""

import json
import socket
import struct
import time

import websocket

LONG = {"prompt": "x", "max_tokens": 2000}  # 20 seconds


HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "x" * 22 + "==",
}


class Client:
    """A WebSocket; what comes on it."""

    def __init__(self, server, receive_buffer=None, address=None, **more):
        options = []
        if address:
            place = ("127.0.0.1", server.port)
            more["socket"] = socket.create_connection(place, 30, source_address=(address, 0))
        if receive_buffer:
            options = [(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)]
        self.socket = websocket.create_connection(
            server.url.replace("http", "ws") + "/v1/stream", timeout=30, sockopt=options, **more
        )

    def send(self, type, id, **more):
        self.socket.send(json.dumps({"type": type, "id": id, **more}))

    def receive(self):
        """Pings alone would keep it waiting forever."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            opcode, frame = self.socket.recv_data_frame(control_frame=True)
            if opcode not in (websocket.ABNF.OPCODE_PING, websocket.ABNF.OPCODE_PONG):
                return json.loads(frame.data)
        raise AssertionError("no message for 30 s")

    def until(self, id, *types):
        """All messages up to one of these types with this id."""
        messages = []
        while not messages or (messages[-1]["type"], messages[-1]["id"]) not in [
            (type, id) for type in types
        ]:
            messages.append(self.receive())
        return messages

    def ends(self, *ids):
        """The last messages of all of these generations, in whatever order they come."""
        ends = {}
        while len(ends) < len(ids):
            message = self.receive()
            if message["type"] in ("end", "error"):
                ends[message["id"]] = message
        return [ends[id] for id in ids]

    def frame_of(self, kind):
        """The next frame of this kind."""
        while True:
            opcode, frame = self.socket.recv_data_frame(control_frame=True)
            if opcode == kind:
                return frame

    def close_code(self):
        """Read to the end; the code that the server closes with."""
        return struct.unpack("!H", self.frame_of(websocket.ABNF.OPCODE_CLOSE).data[:2])[0]

    def close(self):
        self.socket.close()
        self.socket.shutdown()  # which that leaves out once a closing frame has been seen


def wait_until_idle(server, timeout=20):
    server.wait_for(lambda: not server.rows(), timeout)


def wait_until_free(server, **more):
    """A connection, as soon as there is a place for one."""

    def connect():
        try:
            return Client(server, **more)
        except websocket.WebSocketBadStatusException as error:
            assert error.status_code == 429

    return server.wait_for(connect)
