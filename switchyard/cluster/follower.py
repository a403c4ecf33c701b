"""Writes the list of engines of each model to a file. Runs as a process next to Ray's node, as
`python -m switchyard.cluster.follower ADDRESS`. The process ends with the node, and is then started
again.
"""

import os
import sys
import threading
import time
from collections.abc import Sequence

from switchyard.app.config import read_settings
from switchyard.app.table_settings import ClusterSettings
from switchyard.cluster.processes.watched import say
from switchyard.cluster.ray_client import Cluster, ClusterError

PERIOD = 1.0  # seconds between queries
STUCK = 60.0  # seconds for one query, after which the process ends
LOOK = 1.0  # seconds between checks of the clock


def write(path: str, at: Sequence[str]) -> bool:
    """Replaces the file in one step, so that a server reads either the old engines or the new
    engines. Doesn't write an empty list, because servers would treat it as a fault of the source.
    Returns whether the file has changed.
    """
    text = "".join(f"{one}\n" for one in sorted(at))
    if not at or text == _text_of(path):
        return False
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fresh = f"{path}.{os.getpid()}"
    with open(fresh, "w") as file:
        file.write(text)
    os.replace(fresh, path)
    return True


def _text_of(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except (OSError, ValueError):  # missing, or something else has written there
        return ""


class Alarm:
    """Ends the process if there is no sign of life for `STUCK` seconds, because Ray waits forever
    for a lost head.
    """

    def __init__(self) -> None:
        self.sign()
        threading.Thread(target=self._watch, name="alarm", daemon=True).start()

    def sign(self) -> None:
        self._deadline = time.monotonic() + STUCK

    def _watch(self) -> None:
        while time.monotonic() < self._deadline:
            time.sleep(LOOK)
        say("the head doesn't respond; the engines stay as they are")
        os._exit(1)


def follow(cluster: Cluster, settings: ClusterSettings, alarm: Alarm) -> None:
    """Runs until the process ends."""
    fault = ""
    while True:
        alarm.sign()
        before, fault = fault, ""
        for name, state in cluster.states().items():
            if not state["replicas"].get("RUNNING"):
                continue
            try:
                at = [one["at"] for one in cluster.engines(name)]
            except Exception as reason:  # an engine that has just ended, or no head
                fault = f"{name}: no response: {type(reason).__name__}"
                continue
            if write(settings.members_file(name), at):
                say(f"{name}: {', '.join(at)}")
        if fault and fault != before:
            say(f"the engines stay as they are: {fault}")
        time.sleep(PERIOD)


def main() -> None:
    settings = read_settings()
    assert settings.cluster is not None
    alarm = Alarm()
    try:
        cluster = Cluster(settings, sys.argv[1])
    except ClusterError as error:
        say(str(error))
        sys.exit(1)
    follow(cluster, settings.cluster, alarm)


if __name__ == "__main__":
    main()
