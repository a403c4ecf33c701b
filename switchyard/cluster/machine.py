"""This machine's address in a cluster, and how Ray is started on this machine."""

import hashlib
import hmac
import ipaddress
import json
import os
import sys
from collections.abc import Sequence

from switchyard.app import SettingsError
from switchyard.app.table_settings import ClusterSettings

PORT = 6379  # of the head
SLOTS = "engine"  # Ray's resource: engines without a GPU that a machine may have
LABEL = "switchyard"  # the name under which Ray keeps a machine's label
OBJECT_STORE = 80_000_000  # bytes, about the least that Ray accepts; nothing is stored there
FIRST_WORKER, LAST_WORKER = 20000, 20099
HEADLESS = 365 * 86400  # seconds without a head after which Ray ends here, with all engines
# The command `ray`, but the head starts no server for Ray clients. Ray has no option for that.
RAY = (
    "import ray.scripts.scripts as ray; ray.get_ray_client_dependency_error = lambda: 'unwanted';"
    " ray.main()"
)


def own_address(cluster: ClusterSettings, here: Sequence[str], given: str | None = None) -> str:
    """This machine's address in the cluster's network, or the `given` address. Raises
    SettingsError.
    """
    inside = [one for one in here if ipaddress.IPv4Address(one) in cluster.network]
    if given is not None:
        if given not in here:
            raise SettingsError(f"--address {given}: this machine has {', '.join(here)}")
        inside = [given]
    if len(inside) == 1:
        return inside[0]
    if not inside:
        raise SettingsError(
            f"cluster.network: no address of this machine is in {cluster.network}: this machine has"
            f" {', '.join(here)}"
        )
    raise SettingsError(
        f"cluster.network: this machine has {', '.join(inside)} in {cluster.network}: choose one"
        " with --address"
    )


def environment(cluster: ClusterSettings, key: bytes) -> dict[str, str]:
    """Ray's environment variables for a command. All machines share one secret, which is the
    engines' key.
    """
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": hmac.new(key, b"ray", hashlib.sha256).hexdigest(),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "2000",
        "RAY_health_check_failure_threshold": "3",
        "RAY_gcs_storage": "rocksdb",
        "RAY_gcs_storage_path": f"{cluster.state_dir}/gcs",
    }


def environment_of_machine(cluster: ClusterSettings, key: bytes) -> dict[str, str]:
    """Ray's environment variables for the processes that always run here. Unlike commands, these
    processes survive the loss of the head. They end immediately on SIGTERM, because `cluster node
    --drain` moves engines. Engines run at the niceness of `cluster node`; by default, Ray gives its
    workers and their children a low priority.
    """
    lasting = {
        "RAY_worker_niceness": "0",
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(HEADLESS),
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    }
    return environment(cluster, key) | lasting


def ray_start(
    cluster: ClusterSettings, address: str, is_head: bool, slots: int, label: str | None = None
) -> list[str]:
    """The command that runs Ray on this machine. `slots`: the number of engines without a GPU. With
    0, a head has no engines at all.
    """
    place = ["--head", f"--port={PORT}", "--include-dashboard=false", "--no-monitor"]
    return [
        *(sys.executable, "-c", RAY, "start", "--block", "--log-color=false"),
        *(place if is_head else [f"--address={cluster.head}:{PORT}"]),
        f"--node-ip-address={address}",
        f"--temp-dir={cluster.state_dir}/ray",
        "--disable-usage-stats",
        "--include-log-monitor=false",
        "--num-cpus=0",
        *(["--num-gpus=0"] if is_head and not slots else []),
        f"--resources={json.dumps({SLOTS: slots})}",
        *([f"--labels={LABEL}={label}"] if label else []),
        f"--object-store-memory={OBJECT_STORE}",
        f"--node-manager-port={PORT + 1}",
        f"--object-manager-port={PORT + 2}",
        f"--runtime-env-agent-port={PORT + 3}",
        f"--dashboard-agent-grpc-port={PORT + 4}",
        f"--dashboard-agent-listen-port={PORT + 5}",
        f"--metrics-export-port={PORT + 6}",
        f"--min-worker-port={FIRST_WORKER}",
        f"--max-worker-port={LAST_WORKER}",
    ]


def forget_last_start(cluster: ClusterSettings) -> None:
    """Removes a file that names the previous head, because Ray would refuse a new head while this
    file exists.
    """
    path = f"{cluster.state_dir}/ray/ray_current_cluster"
    if os.path.exists(path):
        os.unlink(path)
