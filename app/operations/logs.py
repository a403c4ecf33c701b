"""Formats and destinations of logs. A separate thread writes the logs, because the engine thread
must not wait for a terminal or a disk.
"""

import atexit
import json
import logging
import logging.handlers
import os
import queue
import sys
import threading
import time
from datetime import UTC, datetime
from typing import Any, Literal

from switchyard.app.http.request_id import request_id
from switchyard.app.operations.access import AccessLine
from switchyard.settings import SettingsError

ACCESS = "switchyard.access"
AUDIT = "switchyard.audit"
PAUSE = 0.05  # seconds for which access lines are collected before they are written
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

LogFormat = Literal["text", "json"]


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__(TEXT)

    def format(self, record: logging.LogRecord) -> str:
        if isinstance(record.msg, AccessLine):
            return str(record.msg)
        return super().format(record)


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object on a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record.created),
            "level": record.levelname,
            "logger": record.name,
        }
        if isinstance(record.msg, AccessLine):
            return json.dumps({**line, "message": record.msg.summary, **record.msg.fields})
        line["message"] = record.getMessage()
        if of_request := getattr(record, "request_id", ""):
            line["request_id"] = of_request
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            line["exception"] = record.exc_text
        return json.dumps(line)


class _ToListener(logging.handlers.QueueHandler):
    """Completes a record with message, request id and traceback, on the thread that logs the
    record.
    """

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        if isinstance(record.msg, AccessLine):
            return record
        record.msg, record.args = record.getMessage(), None
        record.request_id = request_id()
        if record.exc_info:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
            record.exc_info = None
        return record


class _Listener(logging.handlers.QueueListener):
    """Collects access lines for a moment before it writes them. Waking up for each line would take
    the GIL from a request thread, at more cost than the line itself.
    """

    def dequeue(self, block: bool) -> logging.LogRecord:
        try:
            return super().dequeue(False)
        except queue.Empty:
            record = super().dequeue(block)
            if isinstance(getattr(record, "msg", None), AccessLine):
                time.sleep(PAUSE)
            return record


class _AccessFile(logging.handlers.WatchedFileHandler):
    """The access log's file, readable only by owner and group, because it contains addresses and
    names of keys.
    """

    def _open(self) -> Any:
        return open(
            self.baseFilename, self.mode, opener=lambda path, flags: os.open(path, flags, 0o640)
        )


def listen(level: str, log_format: LogFormat, access_log: str) -> logging.handlers.QueueListener:
    """Starts the thread that writes the records of this process, until the process ends.

    `access_log`: a path; `-` for stderr; empty for none. Raises SettingsError if the access log
    can't be opened.
    """
    formatter = make_formatter(log_format)
    stderr = logging.StreamHandler()
    stderr.addFilter(lambda record: access_log == "-" or record.name != ACCESS)
    handlers: list[logging.Handler] = [stderr]
    if access_log not in ("", "-"):
        handlers.append(_file(access_log))
    for handler in handlers:
        handler.setFormatter(formatter)
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    listener = _Listener(records, *handlers)
    to_listener = _ToListener(records)
    logger = logging.getLogger("switchyard")
    logger.setLevel(level)
    logger.addHandler(to_listener)
    logger.propagate = False
    # These two logs ignore the level of the other logs.
    logging.getLogger(ACCESS).setLevel(logging.INFO)
    logging.getLogger(AUDIT).setLevel(logging.INFO)
    if log_format == "json":
        _catch_others(to_listener)
    listener.start()
    atexit.register(listener.stop)
    return listener


def make_formatter(log_format: LogFormat) -> logging.Formatter:
    return JsonFormatter() if log_format == "json" else TextFormatter()


def say(message: str, log_format: LogFormat, is_error: bool = False) -> None:
    """Writes one of the server's own lines at once, bypassing the listener, because it may be the
    last line.
    """
    if log_format == "json":
        level = logging.ERROR if is_error else logging.INFO
        record = logging.LogRecord("switchyard.server", level, "", 0, message, None, None)
        message = JsonFormatter().format(record)
    stream = sys.stderr if is_error else sys.stdout
    # A single write, because another thread's line could come in between.
    stream.write(message + "\n")
    stream.flush()


def _file(path: str) -> logging.Handler:
    """The access log's handler. After the file has been renamed, the next line opens a new file."""
    try:
        handler = _AccessFile(path)
    except OSError as reason:
        raise SettingsError(f"setting access_log: {reason}") from None
    handler.addFilter(lambda record: record.name == ACCESS)
    return handler


def _catch_others(handler: logging.Handler) -> None:
    """Also handles log records and warnings from libraries, and uncaught exceptions."""
    logging.getLogger().addHandler(handler)
    logging.captureWarnings(True)
    logger = logging.getLogger("switchyard.uncaught")

    def tell(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
        logger.critical("uncaught exception: %s", error, exc_info=(kind, error, traceback))

    def tell_of_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit and args.exc_value is not None:
            tell(args.exc_type, args.exc_value, args.exc_traceback)

    sys.excepthook = tell
    threading.excepthook = tell_of_thread


def _time(seconds: float) -> str:
    """A time in the format of RFC 3339, in UTC, with milliseconds."""
    when = datetime.fromtimestamp(seconds, UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
