"""The process of a shared engine: `switchyard engine`."""

import faulthandler
import os
import signal
import threading
import time
from dataclasses import replace

from switchyard import engine
from switchyard.app import Settings
from switchyard.app.operations import logs
from switchyard.engine.links.hosts.host import Host
from switchyard.engine.memory.gpus import environment
from switchyard.engine.memory.process import keep_memory_small
from switchyard.engine.models.opening import open_host
from switchyard.server.notifier import Notifier

LOST, NOT_LOADED = 1, 3  # exit statuses
RELEASE = 5.0  # seconds to end remaining jobs and release the model
LOOK = 0.2  # seconds between checks of the engine


def run(config: engine.ModelConfig, at: str, settings: Settings) -> int:
    """Runs until the engine ends, or a signal ends it. The first SIGTERM or SIGINT drains the
    engine, and the second ends it immediately. Returns the exit status. Raises engine.ModelError if
    it can't listen on the address.
    """
    faulthandler.enable()
    notifier = Notifier.take(os.environ)
    keep_memory_small()
    logs.listen(settings.log_level, settings.log_format, "")
    if config.replicas == 1:  # the engine runs in this process
        os.environ.update(environment(config.gpus))
        config = replace(config, gpus=())
    host = open_host(config, at)
    is_told = threading.Event()

    def end(*_: object) -> None:
        if is_told.is_set():
            os._exit(LOST)
        is_told.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    host.start()
    _follow(host, notifier, is_told)
    if is_told.is_set():
        notifier.tell_end(settings.grace + RELEASE)
        return 0 if host.close(drain=settings.grace, timeout=RELEASE) else LOST
    host.close(timeout=RELEASE)
    return LOST if host.is_loaded else NOT_LOADED


def _follow(host: Host, notifier: Notifier, is_told: threading.Event) -> None:
    """Waits until the engine ends or `is_told` is set."""
    is_ready, next_sign = False, 0.0
    while not is_told.is_set() and not host.wait(LOOK):
        if host.is_loaded and not is_ready:
            is_ready = True
            notifier.tell("READY=1", "STATUS=ready")
        if time.monotonic() >= next_sign:
            next_sign = time.monotonic() + notifier.period
            if is_ready:
                status = f"ready, {host.num_jobs} jobs, {host.num_wanted} wanted"
                notifier.tell("WATCHDOG=1", f"STATUS={status}")
            else:
                notifier.tell_loads("loading")
