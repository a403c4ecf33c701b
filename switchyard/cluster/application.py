"""A model as a Ray Serve application. Only Ray's processes import this module."""

from typing import Any

import ray.util
from ray import serve

from switchyard.cluster.processes.failures import Failures
from switchyard.cluster.ray_client import APPLY, FILES, Store, cause_of
from switchyard.cluster.supervisor import Supervisor


class Replica(Supervisor):
    def __init__(self, name: str, version: str) -> None:
        store, address = Store(), ray.util.get_node_ip_address()
        failures = Failures(store, name, address, cause_of(store.get(APPLY), version))
        super().__init__(name, version, address, store.get(FILES + name), failures)


def build(args: dict[str, str]) -> Any:
    """Called by Serve with the `args` in the application's declaration."""
    return serve.deployment(Replica, name="engine").bind(args["name"], args["version"])
