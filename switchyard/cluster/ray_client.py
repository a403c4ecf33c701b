"""A connection to the head of a running cluster. Imports Ray when it connects."""

import importlib.metadata
import importlib.util
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from switchyard.app.config import Settings
from switchyard.app.table_settings import ClusterSettings
from switchyard.cluster.declaration import DEPLOYMENT, declaration
from switchyard.cluster.machine import PORT, SLOTS, environment
from switchyard.cluster.processes.failures import Failures
from switchyard.cluster.wanted import There, Wanted
from switchyard.engine.links.hosts.key import keys_in, read_key

VERSION = "2.60"  # of Ray, whose private functions are used
CURE = "pip install 'switchyard[cluster]'"
REACH = 10.0  # seconds for the head to answer
ASK = 5.0  # seconds for all engines to answer
KNOCK = "import sys; from ray._raylet import GcsClient; GcsClient(address=sys.argv[1])"
APPLY = "switchyard-apply"  # names the latest `apply` in Ray's store
FILES = "switchyard-files "  # before a model's name: the fingerprint where `apply` ran

FAULT = "RuntimeError: "  # begins the line with a supervisor's reason why there is no engine


class ClusterError(Exception):
    """The reason, in one line, why a command fails on the cluster."""


def check_installed() -> None:
    """Raises ClusterError if Ray is missing or has the wrong version."""
    if importlib.util.find_spec("ray") is None:
        raise ClusterError(f"ray is not installed: {CURE}")
    if not (found := importlib.metadata.version("ray")).startswith(f"{VERSION}."):
        raise ClusterError(f"ray {found} is installed, but {VERSION} is needed: {CURE}")


def key_of(settings: Settings) -> bytes:
    """The key that all machines share. Raises ClusterError, engine.ModelError."""
    if not (key := read_key(settings.engine_key_file)):
        raise ClusterError(
            "engine_key_file: a cluster needs a key, which must be the same on every machine"
        )
    return keys_in(key)[0]


def is_reachable(cluster: ClusterSettings, seconds: float) -> bool:
    try:
        socket.create_connection((str(cluster.head), PORT), seconds).close()
    except OSError:
        return False
    return True


def fault_of_key(cluster: ClusterSettings, variables: Mapping[str, str]) -> str:
    """Why the head refuses this machine, or an empty string if it doesn't. Runs in another process,
    because Ray, if imported here, would occupy memory for as long as this process runs.
    """
    command = [sys.executable, "-c", KNOCK, f"{cluster.head}:{PORT}"]
    done = subprocess.run(command, env=dict(variables), capture_output=True, text=True, timeout=60)
    return explain(done.stderr) if done.returncode else ""


def drain(settings: Settings, address: str) -> None:
    """Makes Serve start a machine's engines elsewhere, then end the engines on the machine, and
    place no others there. Raises ClusterError. Doesn't use `Cluster`, because Ray ends on the
    machine with the last engine, as does each process that is connected to Ray.
    """
    gcs = _connect(settings)
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason
    from ray.core.generated.gcs_pb2 import GcsNodeInfo

    nodes = gcs.get_all_node_info(timeout=REACH, state_filter=GcsNodeInfo.ALIVE)
    found = [node for node, one in nodes.items() if one.node_manager_address == address]
    if not found:
        raise ClusterError(f"{address} is not in the cluster at present")
    reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")  # without a deadline
    is_accepted, why = gcs.drain_node(found[0].hex(), reason, "cluster node --drain", 0)
    if not is_accepted:
        raise ClusterError(f"{address} can't be drained: {why}")


def _connect(settings: Settings) -> Any:
    """Returns a connection to the store of the cluster's state. Raises ClusterError within
    seconds.
    """
    check_installed()
    assert settings.cluster is not None
    os.environ.update(environment(settings.cluster, key_of(settings)))
    if not is_reachable(settings.cluster, REACH):
        raise ClusterError(f"the head {settings.cluster.head}:{PORT} can't be reached")
    from ray._raylet import GcsClient

    try:
        return GcsClient(address=f"{settings.cluster.head}:{PORT}")
    except Exception as error:
        raise ClusterError(explain(str(error)) or _line(error)) from None


def cause_of(apply: str, version: str) -> str:
    """The reason for starting engines: an `apply`, and the version of the engines' settings."""
    return f"{apply} {version}"


def explain(text: str) -> str:
    """What one of Ray's errors means for an operator, in one line, or an empty string for an
    unknown error.
    """
    if "UNAUTHENTICATED" in text.upper() or "InvalidAuthToken" in text:
        return "the head has a different key: compare engine_key_file"
    if "Version mismatch" in text:
        words = [line.strip() for line in text.splitlines() if "Ray:" in line or "Python:" in line]
        return f"the head has different versions of Ray or Python: {', '.join(words) or CURE}"
    if "Can't find a node_ip_address" in text or "node with" in text.lower():
        return "this machine is not in the cluster: run this command where the head or a node runs"
    return ""


class Store:
    """Ray's store of small values, available in any of Ray's processes."""

    def get(self, key: str) -> str:
        from ray.experimental.internal_kv import _internal_kv_get

        return (_internal_kv_get(key) or b"").decode()

    def put(self, key: str, value: str) -> None:
        from ray.experimental.internal_kv import _internal_kv_put

        _internal_kv_put(key, value)


class Cluster:
    """A connection to the head. Not thread-safe."""

    def __init__(self, settings: Settings, address: str) -> None:
        """`address`: this machine's address. Raises ClusterError within seconds."""
        self._gcs = _connect(settings)  # `init` keeps trying a wrong key for minutes
        assert settings.cluster is not None
        import ray

        self._ray = ray
        try:
            ray.init(
                address=f"{settings.cluster.head}:{PORT}",
                namespace="switchyard",
                logging_level="ERROR",
                log_to_driver=False,
                _node_ip_address=address,
            )
        except Exception as error:
            raise ClusterError(explain(str(error)) or _line(error)) from None
        from ray import serve
        from ray.serve.context import _get_global_client

        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        self._serve, self._client, self._store = serve, _get_global_client, Store()

    def close(self) -> None:
        self._ray.shutdown()

    # Questions

    def there(self) -> dict[str, There]:
        """The most recently declared models."""
        found = {}
        for name, one in self._applications().items():
            target = one["deployments"].get(DEPLOYMENT, {}).get("target_num_replicas", 0)
            config = one["deployed_app_config"] or {}
            found[name] = There(target, config.get("args", {}).get("version", ""))
        return found

    def states(self) -> dict[str, dict[str, Any]]:
        """For each model, the number of engines in each of Serve's states, and Serve's message."""
        found = {}
        for name, one in self._applications().items():
            deployment = one["deployments"].get(DEPLOYMENT, {})
            message = deployment.get("message") or one["message"]
            replicas = deployment.get("replicas", [])
            states = [replica["state"] for replica in replicas]
            found[name] = {
                "state": one["status"],
                "message": _last_line(message),
                "target": deployment.get("target_num_replicas", 0),
                "replicas": {state: states.count(state) for state in states},
                "unplaced": sum(
                    one["state"] == "STARTING" and not one.get("node_id") for one in replicas
                ),
                "config": (one["deployed_app_config"] or {}).get("args", {}),
            }
        return found

    def engines(self, name: str, is_whole: bool = True) -> list[dict[str, Any]]:
        """What each running engine of a model reports about itself. Raises Ray's error if an engine
        doesn't respond and all are required (`is_whole`).
        """
        handle = self._serve.get_deployment_handle(DEPLOYMENT, name)
        answers = handle.broadcast("info").results(timeout_s=ASK, return_exceptions=not is_whole)
        found = [one for one in answers if isinstance(one, dict)]
        return sorted(found, key=lambda one: str(one["at"]))

    def nodes(self) -> list[dict[str, Any]]:
        """The machines in the cluster, with the resources that Ray may use."""
        draining = self._gcs.get_draining_nodes(timeout=REACH)
        return [
            {
                "address": one["NodeManagerAddress"],
                "gpus": one["Resources"].get("GPU", 0),
                "engines": one["Resources"].get(SLOTS, 0),
                "label": one.get("Labels", {}).get("switchyard", ""),
                "is_head": "node:__internal_head__" in one["Resources"],
                "is_draining": one["NodeID"] in draining,
            }
            for one in self._ray.nodes()
            if one["Alive"]
        ]

    def faults(self, wanted: Wanted) -> list[str]:
        """Why engines of a model failed since the last `apply`, as a line for each machine."""
        cause = cause_of(self._store.get(APPLY), wanted.version)
        here = [str(one["address"]) for one in self.nodes()]
        lines = {at: Failures(self._store, wanted.name, at, cause).line() for at in here}
        return [f"{at}: {line}" for at, line in lines.items() if line]

    def has_room(self, wanted: Wanted) -> bool:
        """Whether the machines together have enough resources for an engine."""
        free: float = self._ray.available_resources().get(_unit(wanted), 0)
        return free >= (wanted.gpus_each or 1)

    def lack(self, wanted: Wanted) -> str:
        """The resource that the next engine of a model waits for."""
        what = _unit(wanted)
        number = wanted.gpus_each or 1
        free = self._ray.available_resources().get(what, 0)
        whole = self._ray.cluster_resources().get(what, 0)
        unit = "GPU" if what == "GPU" else "place"
        where = f" on machines labelled {', '.join(wanted.nodes)}" if wanted.nodes else ""
        plural = "" if number == 1 else "s"
        return f"waits for {number} {unit}{plural}{where}: {free:.0f} of {whole:.0f} are free"

    # Commands

    def declare(self, wanted: Sequence[Wanted]) -> str:
        """Declare all models to Serve, replacing earlier ones. Returns the declaration's name."""
        from ray.serve.schema import ServeDeploySchema

        name = f"{os.getpid()} {time.time()}"
        self._store.put(APPLY, name)
        for one in wanted:
            self._store.put(FILES + one.name, one.files())
        self._serve.start(proxy_location="Disabled")
        # Serve doesn't retry a model whose engines have all failed to start.
        states = self.states()
        failed = {name for name, one in states.items() if one["state"] == "DEPLOY_FAILED"}
        self._client().delete_apps(
            [one for one in failed if not states[one]["replicas"].get("RUNNING")]
        )
        body = ServeDeploySchema.model_validate(declaration(wanted))
        self._client().deploy_apps(body)
        return name

    def is_latest(self, name: str) -> bool:
        """Whether no other `apply` has begun since `declare` returned this name."""
        return self._store.get(APPLY) == name

    def delete(self, names: Sequence[str]) -> None:
        self._client().delete_apps(list(names), blocking=False)

    def _applications(self) -> dict[str, Any]:
        client = self._client(raise_if_no_controller_running=False)
        if client is None:
            return {}
        details = client.get_serve_details()
        return dict(json.loads(json.dumps(details, default=str))["applications"])


def _unit(wanted: Wanted) -> str:
    """The Ray resource that an engine takes."""
    return "GPU" if wanted.gpus_each else SLOTS


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    faults = [line for line in lines if line.startswith(FAULT)]
    return (faults or lines or [""])[-1].removeprefix(FAULT)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {_last_line(str(error))[:200]}"
