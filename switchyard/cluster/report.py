"""The information that `switchyard cluster status` shows."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from switchyard.cluster.applying import is_done
from switchyard.cluster.ray_client import Cluster
from switchyard.cluster.wanted import Wanted


def report(cluster: Cluster, wanted: Sequence[Wanted]) -> dict[str, Any]:
    """The machines, and each model with its engines, in the format of the JSON output."""
    by_name = {one.name: one for one in wanted}
    models = {}
    for name, state in cluster.states().items():
        one = by_name.get(name)
        waits = cluster.lack(one) if one and state["unplaced"] else ""
        models[name] = {
            "engines": _engines(cluster, name),
            "target": state["target"],
            "starting": state["replicas"].get("STARTING", 0),
            "moving": state["replicas"].get("PENDING_MIGRATION", 0),
            "ending": state["replicas"].get("STOPPING", 0),
            "is_done": one is not None and is_done(one, state),
            "waits": waits,
            "fault": "" if state["state"] == "RUNNING" else state["message"],
            "faults": cluster.faults(one) if one else [],
        }
    return {"nodes": cluster.nodes(), "models": models}


def _engines(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    try:
        return cluster.engines(name, is_whole=False)
    except Exception:  # none runs
        return []


def lines_of(found: dict[str, Any]) -> Iterator[str]:
    for node in found["nodes"]:
        parts = [
            "head" if node["is_head"] else "node",
            f"{node['gpus']:.0f} GPUs",
            f"{node['engines']:.0f} engines without a GPU",
            *([f"label {node['label']}"] if node["label"] else []),
            *(["draining"] if node["is_draining"] else []),
        ]
        yield f"{node['address']}: {', '.join(parts)}"
    for name, model in found["models"].items():
        states = [f"{len(model['engines'])} of {model['target']} engines"]
        states += [
            f"{model[what]} {what}" for what in ("starting", "moving", "ending") if model[what]
        ]
        yield f"{name}: {', '.join(states)}"
        for engine in model["engines"]:
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(engine["since"]))
            yield (
                f"  {engine['at']}: {engine['state']}; process {engine['pid']}, version"
                f" {engine['version']}, since {since}"
            )
        for line in dict.fromkeys((model["waits"], model["fault"], *model["faults"])):
            if line:
                yield f"  {line}"
