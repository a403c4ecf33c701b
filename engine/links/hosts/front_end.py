"""A front end: a server from the point of view of a shared engine."""

import logging
import queue
import socket
import struct
import threading
from collections.abc import Callable, Sequence

from switchyard.engine.errors import InvalidJob
from switchyard.engine.links.seal import Seals
from switchyard.engine.links.wire import Wire, send_all
from switchyard.engine.messages import (
    Command,
    Demand,
    Event,
    Failed,
    Hanging,
    Loaded,
    LoadProgress,
    Recovering,
    Stopped,
    Submit,
)
from switchyard.engine.schedule.watchdog import CHECKS, interval_of
from switchyard.engine.standing import Standing
from switchyard.engine.stats import Stats

logger = logging.getLogger(__name__)


class FrontEnd:
    """The connection of one server, with a reading and a writing thread. The connection ends when
    the server ends, or when the server sends or reads nothing for `silence_timeout` seconds.
    """

    def __init__(
        self,
        connection: socket.socket,
        seals: Seals | None,
        pid: int,
        silence_timeout: float,
        take: Callable[["FrontEnd", Command], None],
        leave: Callable[["FrontEnd"], None],
    ) -> None:
        """`take` is called with the server's commands. The reading thread calls `leave` when it
        ends.
        """
        limit = struct.pack("ll", int(silence_timeout), int(silence_timeout % 1 * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self.pid = pid
        self.num_waiting = 0  # jobs that wait in the server
        self._wire = Wire(connection, seals, self._refuse)
        self._silence_timeout = silence_timeout
        self._take = take
        self._leave = leave
        self._outbox: queue.SimpleQueue[Sequence[Event] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=target, name=f"front-end-{pid}", daemon=True)
            for target in (self._read, self._write)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def tell(self, events: Sequence[Event]) -> None:
        """Never blocks."""
        self._outbox.put(events)

    def end(self) -> None:
        """End the connection once all previous events have been sent."""
        self._outbox.put(None)

    def join(self, timeout: float) -> None:
        for thread in self._threads:
            thread.join(timeout)

    # Threads of the front end

    def _refuse(self, command: Command, names: Sequence[str]) -> bool:
        """Refuse a job from a later version that has parameters unknown to this engine."""
        if not isinstance(command, Submit):
            return False
        reason = f"the engine runs an earlier version, which doesn't know {', '.join(names)}"
        self.tell([Failed(command.job.identifier, InvalidJob(reason, names[0]))])
        return True

    def _read(self) -> None:
        interval, silence, reason = interval_of(self._silence_timeout), 0.0, "is silent"
        try:
            while silence < self._silence_timeout:
                messages = self._wire.receive(interval)
                silence = silence + interval if messages is None else 0.0
                for command in messages or ():
                    if isinstance(command, Demand):
                        self.num_waiting = command.num_waiting
                    elif command:  # empty: a sign of life
                        self._take(self, command)
        except (EOFError, OSError):
            reason = "has ended"
        except Exception:
            logger.exception("a message from server %d can't be read", self.pid)
        logger.info("server %d %s", self.pid, reason)
        self._wire.shut()
        self._outbox.put(None)
        self._leave(self)
        self._threads[1].join()
        self._wire.close()

    def _write(self) -> None:
        try:
            send_all(self._wire, self._outbox, self._silence_timeout / CHECKS)
        except OSError:
            pass  # the server has ended, or reads nothing
        except Exception:
            logger.exception("an event can't be sent to server %d", self.pid)
        self._wire.shut()


def greeting(standing: Standing, stats: Stats | None, drains: str | None) -> list[Event]:
    """Returns the first events for a front end. `drains`: the reason why the engine accepts no more
    jobs.
    """
    if standing.is_stopped:
        return [Stopped(standing.error)]
    if standing.info is None:
        return [] if standing.progress is None else [LoadProgress(standing.progress)]
    events: list[Event] = [Loaded(standing.info)]
    if stats is not None:
        events.append(stats)
    if standing.state == "hanging":
        events.append(Hanging(str(standing.error)))
    elif standing.state == "recovering" or drains is not None:
        events.append(Recovering(drains or str(standing.error)))
    return events
