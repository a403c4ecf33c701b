"""The process of an engine that several servers share: `switchyard engine`."""

import faulthandler
import os
import signal
import threading
from dataclasses import replace

from switchyard import engine
from switchyard.app import Settings
from switchyard.app.operations import logs
from switchyard.engine.memory.gpus import environment
from switchyard.engine.memory.process import keep_memory_small
from switchyard.engine.models.opening import open_host

LOST, NOT_LOADED = 1, 3  # exit statuses
RELEASE = 5.0  # seconds to end what is left, and to release the model


def run(config: engine.ModelConfig, at: str, settings: Settings) -> int:
    """Until the engine ends, or SIGTERM or SIGINT ends it: the first drains it, the second ends it
    at once. The exit status. Raises engine.ModelError for an address that can't be listened on.
    """
    faulthandler.enable()
    keep_memory_small()
    logs.listen(settings.log_level, settings.log_format, "")
    if config.replicas == 1:  # it runs in this process
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
    while not is_told.is_set() and not host.wait(0.2):
        pass
    if is_told.is_set():
        return 0 if host.close(drain=settings.grace, timeout=RELEASE) else LOST
    host.close(timeout=RELEASE)
    return LOST if host.is_loaded else NOT_LOADED
