"""Declares each model to Ray Serve as an application. Does no I/O. If an application's `args` don't
change, Serve keeps its engines, even if their number changes; if the `args` change, Serve replaces
the engines one by one.
"""

import math
from collections.abc import Sequence
from typing import Any

from switchyard.cluster.machine import LABEL, SLOTS
from switchyard.cluster.wanted import Wanted
from switchyard.server.shared_engine import RELEASE

DEPLOYMENT = "engine"
STOP = 5.0  # seconds that a supervisor takes after its engine has ended
UP, DOWN = 10.0, 300.0  # seconds of load before a step of the autoscaler


def declaration(wanted: Sequence[Wanted]) -> dict[str, Any]:
    """The body of Serve's `deploy_apps`."""
    return {
        "proxy_location": "Disabled",
        "applications": [_application(one) for one in wanted],
    }


def _application(wanted: Wanted) -> dict[str, Any]:
    return {
        "name": wanted.name,
        "route_prefix": None,
        "import_path": "switchyard.cluster.application:build",
        "args": {"name": wanted.name, "version": wanted.version},
        "deployments": [
            {
                "name": DEPLOYMENT,
                **_number(wanted),
                "ray_actor_options": _needs(wanted),
                "max_ongoing_requests": 1000,
                "health_check_period_s": 1.0,
                "health_check_timeout_s": 5.0,
                "graceful_shutdown_timeout_s": wanted.grace + RELEASE + STOP,
                "graceful_shutdown_wait_loop_s": 0.2,
            }
        ],
    }


def _number(wanted: Wanted) -> dict[str, Any]:
    if wanted.least == wanted.most:
        return {"num_replicas": wanted.least}
    return {
        "autoscaling_config": {
            "min_replicas": wanted.least,
            "max_replicas": wanted.most,
            "policy": {
                "policy_function": "switchyard.cluster.declaration:ByJobs",
                "policy_kwargs": {"jobs": wanted.jobs},
            },
            "upscale_delay_s": UP,
            "downscale_delay_s": DOWN,
        }
    }


def _needs(wanted: Wanted) -> dict[str, Any]:
    needs: dict[str, Any] = {"num_cpus": 0}
    if wanted.gpus_each:
        needs["num_gpus"] = wanted.gpus_each
    else:
        needs["resources"] = {SLOTS: 1}
    if wanted.nodes:
        needs["label_selector"] = {LABEL: f"in({', '.join(wanted.nodes)})"}
    return needs


class ByJobs:
    """An autoscaler for Serve that aims at `jobs` jobs per engine."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """`context`: Serve's context. Returns the number of engines, and no state to remember."""
        loads = context.aggregated_metrics or {}
        jobs, waiting = loads.get("jobs"), loads.get("wanted")
        if not jobs:  # no engine has reported yet
            return context.target_num_replicas, {}
        # Every engine reports the jobs that wait in servers.
        number = sum(jobs.values()) + max(waiting.values() if waiting else [0])
        return math.ceil(number / self._jobs), {}
