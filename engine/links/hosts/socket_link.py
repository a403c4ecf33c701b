"""A link to a shared engine, which is a process that this server neither starts nor ends."""

import logging
import queue
import threading
import time

from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import EngineError, ModelError
from switchyard.engine.links.base import Deliver
from switchyard.engine.links.hosts.key import Key, current
from switchyard.engine.links.hosts.knock import knock
from switchyard.engine.links.hosts.peer import Stranger
from switchyard.engine.links.wire import Wire, send_all
from switchyard.engine.messages import Command, Loaded, Restarting, Stop, Stopped, Submit
from switchyard.engine.schedule.watchdog import CHECKS, interval_of

logger = logging.getLogger(__name__)

RETRY = 0.1  # seconds between tries to connect; doubled each time
MAX_RETRY = 2.0


class SocketLink:
    """When the connection is lost, the event `Restarting` ends the link's jobs, and the link
    reconnects.
    """

    def __init__(
        self, config: ModelConfig, at: str, key: Key, fingerprint: str, deliver: Deliver
    ) -> None:
        self.at = at
        self.pid: int | None = None  # of the engine's process; None while not connected
        self._config = config
        self._key = key
        self._fingerprint = fingerprint
        self._deliver = deliver
        self._commands: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._is_stopping = threading.Event()
        self._was_loaded = False
        self._lock = threading.Lock()  # guards the attributes below
        self._wire: Wire | None = None
        self._thread = threading.Thread(target=self._run, name=f"link-{config.name}", daemon=True)

    # Any thread

    def start(self) -> None:
        self._thread.start()

    def send(self, command: Command) -> None:
        match command:
            case Stop():
                self._is_stopping.set()
                with self._lock:
                    if self._wire is not None:
                        self._wire.shut()
            case Submit(job, submitted):  # sent as an age, because machines' clocks differ
                self._commands.put(Submit(job, time.monotonic() - submitted))
            case _:
                self._commands.put(command)

    def join(self, timeout: float | None = None) -> bool:
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    # Link's thread

    def _run(self) -> None:
        error: EngineError | None = None
        told, wait = "", RETRY
        while not self._is_stopping.is_set() and error is None:
            try:
                reason = self._stay_connected()
            except (Stranger, OSError, EOFError) as problem:
                message = f"no engine for model {self._config.name} at {self.at}: {problem}"
                if isinstance(problem, Stranger) and not self._was_loaded:
                    error = ModelError(message, "at")
                elif message != told:
                    logger.warning("%s", message)
                told = message
                self._is_stopping.wait(wait)
                wait = min(2 * wait, MAX_RETRY)
            except ModelError as problem:  # the engine can't load the model
                error = problem
            else:
                told, wait = "", RETRY
                if not self._is_stopping.is_set():
                    self._deliver([Restarting(reason)])
        self._deliver([Stopped(error)])

    def _stay_connected(self) -> str:
        """Returns why the connection has ended. Raises ModelError for an engine that could not
        load, and Stranger, OSError or EOFError if no connection was made.
        """
        wire, self.pid = knock(self.at, current(self._key), self._fingerprint)
        with wire:
            self._hold(wire)
            logger.info(
                "model %s: connected to process %d at %s", self._config.name, self.pid, self.at
            )
            commands: queue.SimpleQueue[object] = queue.SimpleQueue()
            self._commands = commands
            writer = threading.Thread(
                target=self._write, args=(wire, commands), name="commands", daemon=True
            )
            writer.start()
            try:
                return self._read(wire)
            finally:
                self._hold(None)
                self.pid = None
                wire.shut()
                commands.put(None)
                writer.join()

    def _hold(self, wire: Wire | None) -> None:
        with self._lock:
            self._wire = wire
            if wire is not None and self._is_stopping.is_set():
                wire.shut()

    def _read(self, wire: Wire) -> str:
        """Deliver events until the connection is lost. Returns why it was lost."""
        interval, silence = interval_of(self._config.silence_timeout), 0.0
        try:
            while silence < self._config.silence_timeout:
                messages = wire.receive(interval)
                silence = silence + interval if messages is None else 0.0
                for events in messages or ():
                    match events:
                        case []:
                            continue  # a sign of life
                        case [Loaded(), *_]:
                            self._was_loaded = True
                        case [Stopped(error)]:
                            return self._end(error)
                    self._deliver(events)
        except (EOFError, OSError):
            return self._end(None)
        except ModelError:
            raise
        except Exception:
            logger.exception("a message from the engine at %s can't be read", self.at)
            return self._end(None)
        return f"the engine at {self.at} has been silent for {self._config.silence_timeout:.0f} s"

    def _end(self, error: EngineError | None) -> str:
        """Returns why the engine has ended. Raises ModelError if it was never loaded."""
        if isinstance(error, ModelError) and not self._was_loaded:
            raise error
        return f"the engine at {self.at} has ended" + f": {error}" * (error is not None)

    def _write(self, wire: Wire, commands: "queue.SimpleQueue[object]") -> None:
        try:
            send_all(wire, commands, self._config.silence_timeout / CHECKS)
        except OSError:
            pass  # the link's thread reports the end of the connection
        except Exception:
            logger.exception("a command can't be sent")
            wire.shut()  # otherwise the job would wait forever
