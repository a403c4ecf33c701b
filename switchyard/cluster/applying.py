"""Waits until the cluster matches the request, and reports the progress. Works with any object that
has the interface of `Cluster`.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from switchyard.cluster.declaration import STOP
from switchyard.cluster.ray_client import Cluster
from switchyard.cluster.wanted import Wanted
from switchyard.server.shared_engine import RELEASE

DONE, FAILED, UNDONE = 0, 1, 3  # exit statuses
PERIOD = 0.5  # seconds between checks
REMIND = 30.0  # seconds between messages about a wait
UNPLACED = 10.0  # seconds without a place for an engine, after which it counts as waiting
PLACING = 60.0  # the same if there seems to be room: a busy machine starts a process slowly


def apply(cluster: Cluster, wanted: Sequence[Wanted], tell: Callable[[str], None]) -> int:
    """Returns the exit status, which is 3 if an engine waits for room or another `apply` has
    begun.
    """
    name = cluster.declare(wanted)
    last: dict[str, str] = {}
    waits_since: dict[str, float] = {}
    while True:
        if not cluster.is_latest(name):
            tell("a newer apply has begun and takes precedence")
            return UNDONE
        states = cluster.states()
        now = time.monotonic()
        open_ones = [one for one in wanted if not is_done(one, states.get(one.name))]
        for one in open_ones:
            state = states.get(one.name)
            line = "; ".join([_describe(state), *cluster.faults(one)])
            if last.get(one.name) != line:
                last[one.name] = line
                tell(f"{one.name}: {line}")
            if state and _has_failed(state, cluster.faults(one)):
                tell(f"{one.name}: {state['message']}")
                return FAILED
            if state and _only_waits(state):
                waits_since.setdefault(one.name, now)
            else:
                waits_since.pop(one.name, None)
        gone = set(states) - {one.name for one in wanted}
        if not open_ones and not gone:
            tell("done")
            return DONE
        if open_ones and all(
            now - waits_since.get(one.name, now) > (PLACING if cluster.has_room(one) else UNPLACED)
            for one in open_ones
        ):
            for one in open_ones:
                tell(f"{one.name}: {cluster.lack(one)}")
            return UNDONE
        time.sleep(PERIOD)


def down(cluster: Cluster, names: Sequence[str], grace: float, tell: Callable[[str], None]) -> int:
    """Returns the exit status, which is 3 if engines still run after the time allowed."""
    cluster.delete(names)
    deadline = time.monotonic() + grace + RELEASE + 2 * STOP
    while left := sorted(set(names) & set(cluster.states())):
        if time.monotonic() > deadline:
            tell(f"still ending: {', '.join(left)}")
            return UNDONE
        time.sleep(PERIOD)
    tell(f"ended: {', '.join(names) or 'nothing'}")
    return DONE


def drain(address: str, here: Callable[[], Sequence[str]], tell: Callable[[str], None]) -> None:
    """Waits until a machine has no more engines. `here`: the engines on that machine."""
    told, last = -REMIND, ""
    while left := here():
        line = f"{', '.join(left)}: waiting for replacements, and for all requests to end"
        if line != last or time.monotonic() > told + REMIND:
            told, last = time.monotonic(), line
            tell(line)
        time.sleep(PERIOD)
    tell(f"{address} has no engine, and gets none until its `cluster node` is started again")


def is_done(wanted: Wanted, state: dict[str, Any] | None) -> bool:
    """Whether all engines run with the wanted settings, and no others run."""
    if state is None or state["config"].get("version") != wanted.version:
        return False
    number, running = state["target"], state["replicas"].get("RUNNING", 0)
    is_in_range = wanted.least <= number <= wanted.most
    is_still = set(state["replicas"]) <= {"RUNNING"} and running == number
    return bool(state["state"] == "RUNNING" and is_in_range and is_still)


def _has_failed(state: dict[str, Any], faults: Sequence[str]) -> bool:
    """Whether an engine has failed. `faults`: the faults since this `apply`. Serve still considers
    a model unhealthy that lost an engine before this `apply`.
    """
    is_over = state["state"] == "DEPLOY_FAILED" and not state["replicas"].get("RUNNING")
    is_new = is_over or (state["state"] in ("DEPLOY_FAILED", "UNHEALTHY") and faults)
    return bool(is_new and state["message"])


def _only_waits(state: dict[str, Any]) -> bool:
    """Whether the only remaining task is to place engines for which there is no room."""
    others = set(state["replicas"]) - {"RUNNING", "STARTING", "PENDING_MIGRATION"}
    return bool(state["unplaced"] and not others) and (
        state["unplaced"] == state["replicas"].get("STARTING", 0)
    )


def _describe(state: dict[str, Any] | None) -> str:
    if not state:
        return "declared"
    parts = [f"{number} {name.lower()}" for name, number in sorted(state["replicas"].items())]
    return ", ".join(parts) or "no engine yet"
