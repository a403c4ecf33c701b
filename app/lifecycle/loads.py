"""Events that report loads and the states of models."""

import time
from collections.abc import Iterator
from typing import Any, Literal

from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard import engine
from switchyard.app.errors import describe
from switchyard.app.http.body import dumps

LOOK = 0.25  # seconds between two checks of a load or of the models
# Seconds to wait for a load's first progress. Most refusals occur before it.
FIRST = 30.0

Value = Literal["unloaded", "loading", "loaded", "failed"]  # llama.cpp's states
VALUES: dict[engine.ModelState, Value] = {
    "loading": "loading",
    "unloaded": "unloaded",
    "stopped": "unloaded",
    "failed": "failed",
}


class ModelStatusBody(TypedDict):
    model: str
    status: str
    progress: float | None


class LoadDone(TypedDict):
    model: str
    status: Literal["loaded"]
    way: engine.Way | None
    seconds: float


class StatusProgress(TypedDict):
    value: float | None


class StatusData(TypedDict):
    status: Value
    progress: StatusProgress


class StatusEvent(TypedDict):
    model: str
    event: Literal["model_status"]
    data: StatusData


def value_of(state: engine.ModelState) -> Value:
    return VALUES.get(state, "loaded")


def begun(load: engine.Load, timeout: float = FIRST) -> None:
    """Waits until a load makes progress or is done, or `timeout` seconds have passed. Raises the
    load's error if the load has failed by then.
    """
    until = time.monotonic() + timeout
    while load.wait(LOOK / 5) is not None and load.progress is None and time.monotonic() < until:
        pass


def events_of_load(load: engine.Load) -> Iterator[bytes]:
    """Events that report a load's progress. The last event says that the model is loaded, or
    contains the error.
    """
    try:
        while (progress := load.wait(LOOK)) is not None:
            yield _event({"model": load.name, "status": "loading", "progress": round(progress, 3)})
    except engine.EngineError as error:
        yield _event(describe(error)[1])
        return
    seconds = round(load.seconds or 0.0, 3)
    yield _event({"model": load.name, "status": "loaded", "way": load.way, "seconds": seconds})


def events_of_models(models: engine.Models, heartbeat: float) -> Iterator[bytes]:
    """An event for each model's state, then an event for each change. After `heartbeat` seconds
    without events, yields a comment.
    """
    told: dict[str, dict[str, Any]] = {}
    last = time.monotonic()
    while not models.is_over:
        for name in models.names:
            status = models.status(name)
            data = {"status": value_of(status.state), "progress": {"value": status.progress}}
            if told.get(name) != data:
                told[name], last = data, time.monotonic()
                yield _event({"model": name, "event": "model_status", "data": data})
        if time.monotonic() - last >= heartbeat:
            last = time.monotonic()
            yield b": \n\n"
        time.sleep(LOOK)


def _event(body: Any) -> bytes:
    return b"data: " + dumps(body) + b"\n\n"
