"""Accepts connections to a shared engine from servers that have the key and the files of the same
model.
"""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable

from switchyard.engine.links.hosts import address
from switchyard.engine.links.hosts.handshake import meet_server
from switchyard.engine.links.hosts.introduction import Hello, Welcome
from switchyard.engine.links.hosts.key import Key, current
from switchyard.engine.links.hosts.peer import Stranger
from switchyard.engine.links.seal import Seals

logger = logging.getLogger(__name__)

MAX_STRANGERS = 64  # handshakes at once; a further connection takes the place of the oldest


class Door:
    """One thread does nothing but accept connections. Each handshake runs on its own thread, for a
    few seconds at most.
    """

    def __init__(
        self,
        at: str,
        key: Key,
        fingerprint: str,
        admit: Callable[[socket.socket, Seals | None, int], None],
        is_ready: Callable[[], bool],
    ) -> None:
        """Listens at once, so that a wrong address is detected early. Raises ModelError. `admit` is
        called on the thread of the handshake, with the server's process id. `is_ready`: see
        `Welcome`.
        """
        self._is_ready = is_ready
        self._key = key
        self._fingerprint = fingerprint
        self._admit = admit
        self._changed = threading.Condition()  # guards the attribute below; notified of an end
        self._strangers: dict[socket.socket, bool] = {}  # oldest first; whether ended for another
        self._is_open = True
        self._listener = address.listen(at)
        self._thread = threading.Thread(target=self._accept, name="accept", daemon=True)

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        with contextlib.suppress(OSError):  # raised on some systems for a listener
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        if self._thread.ident is not None:
            self._thread.join()
        address.release(self._listener)

    # Threads of the door

    def _accept(self) -> None:
        while self._is_open:
            try:
                connection, _ = self._listener.accept()
            except OSError as reason:
                if self._is_open:
                    logger.warning("no connection can be accepted: %s", reason)
                    time.sleep(0.1)  # perhaps no file descriptor is free
                continue
            self._give_place(connection)
            threading.Thread(
                target=self._meet, args=(connection,), name="stranger", daemon=True
            ).start()

    def _give_place(self, connection: socket.socket) -> None:
        """If there is no room, end the oldest handshake. A server's handshake takes milliseconds,
        so the oldest handshake's client is silent or slow. Its thread ends at once.
        """
        with self._changed:
            while len(self._strangers) >= MAX_STRANGERS:
                oldest = next(iter(self._strangers))
                self._strangers[oldest] = True
                with contextlib.suppress(OSError):  # it has ended
                    oldest.shutdown(socket.SHUT_RDWR)
                self._changed.wait()
            self._strangers[connection] = False

    def _take_place(self, connection: socket.socket) -> bool:
        """Take the connection's place back. Returns whether the connection was ended to make
        room.
        """
        with self._changed:
            self._changed.notify()
            return self._strangers.pop(connection)

    def _meet(self, connection: socket.socket) -> None:
        met = None
        reason: Exception | str
        try:
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            met = meet_server(connection, current(self._key), self._answer)
        except (Stranger, OSError, EOFError) as error:
            reason = error
        except Exception as error:
            logger.exception("a handshake failed")
            reason = error
        if self._take_place(connection):  # before closing, so that no other socket has its number
            reason = "it had not completed the handshake when other connections arrived"
        if met is None:
            logger.warning("a connection was refused: %s", reason)
            connection.close()
            return
        hello, seals = met
        if hello.is_look:
            connection.close()
        else:
            self._admit(connection, seals, hello.pid)

    def _answer(self, hello: Hello) -> Welcome:
        refusal = ""
        is_question = hello.is_look and not hello.fingerprint
        if hello.fingerprint != self._fingerprint and not is_question:
            refusal = (
                f"the engine's model has the fingerprint {self._fingerprint}, but this server's has"
                f" {hello.fingerprint[:100]}: both need the same files"
            )
        return Welcome(os.getpid(), refusal, self._is_ready())
