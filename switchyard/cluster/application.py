"""A model as an application of Ray Serve. Only Ray's processes import this module."""

from typing import Any

import ray.util
from ray import serve
from ray.experimental.internal_kv import _internal_kv_get

from switchyard.cluster.ray_client import APPLY, FILES
from switchyard.cluster.supervisor import Supervisor


class Replica(Supervisor):
    def __init__(self, name: str, version: str) -> None:
        files, apply = ((_internal_kv_get(key) or b"").decode() for key in (FILES + name, APPLY))
        super().__init__(name, version, ray.util.get_node_ip_address(), files, apply)


def build(args: dict[str, str]) -> Any:
    """Called by Serve, with the `args` of the application's declaration."""
    return serve.deployment(Replica, name="engine").bind(args["name"], args["version"])
