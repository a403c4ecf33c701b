"""`switchyard cluster`: engines on several machines, which Ray places, restarts and scales."""

import json
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import wraps
from typing import Any

import click

from switchyard import engine
from switchyard.addresses import addresses_here
from switchyard.app import SettingsError, read_settings
from switchyard.app.config import Settings
from switchyard.app.table_settings import ClusterSettings, check_label
from switchyard.cluster import applying, ray_client
from switchyard.cluster.machine import (
    PORT,
    environment,
    environment_of_machine,
    forget_last_start,
    own_address,
    ray_start,
)
from switchyard.cluster.processes.engine_process import Place
from switchyard.cluster.processes.watched import Watched, say
from switchyard.cluster.ray_client import (
    Cluster,
    ClusterError,
    check_installed,
    explain,
    fault_of_key,
    is_reachable,
    key_of,
)
from switchyard.cluster.report import lines_of, report
from switchyard.cluster.wanted import changes, wanted
from switchyard.server.notifier import Notifier
from switchyard.settings import CONFIG, file

PATIENCE = 30.0  # seconds between a node's messages that the head can't be reached

Body = Callable[..., None]
ADDRESS = click.option(
    "--address", help="This machine's address, if it has several in the network."
)


def _with_faults(body: Body) -> Body:
    """Reports faults in one line, and exits with status 1."""

    @wraps(body)
    def run(**given: Any) -> None:
        try:
            body(**given)
        except (SettingsError, ClusterError, engine.ModelError, OSError) as error:
            click.echo(f"switchyard: {error}", err=True)
            sys.exit(1)

    return run


@click.group()
def cluster() -> None:
    """Run engines on several machines, with Ray."""


@cluster.command()
@ADDRESS
@click.option(
    "--engines",
    default=0,
    help="Number of engines without a GPU that may run here. Default: 0, and no engines with one.",
)
@click.option("--new-key", metavar="FILE", help="Write a key for all machines to FILE, and exit.")
@_with_faults
def head(address: str | None, engines: int, new_key: str | None) -> None:
    """Run the head of the cluster on this machine, until a signal ends it."""
    if new_key is not None:
        _write_key(new_key)
        return
    settings, place, own = _here(address)
    if own != str(place.head):
        raise SettingsError(f"cluster.head is {place.head}, but this machine is {own}")
    command = ray_start(place, own, True, _places(engines))
    _run(settings, place, own, command, lambda: forget_last_start(place))


@cluster.command()
@ADDRESS
@click.option(
    "--engines", default=1, help="Number of engines without a GPU that may run here. Default: 1."
)
@click.option("--label", help="A label that a model's `nodes` may name.")
@click.option(
    "--drain", is_flag=True, help="Move this machine's engines elsewhere, so that you can stop it."
)
@_with_faults
def node(address: str | None, engines: int, label: str | None, drain: bool) -> None:
    """Offer this machine to the cluster, until a signal ends it."""
    if drain:
        _drain(address)
        return
    if label is not None:
        try:
            check_label(label)
        except ValueError as error:
            raise SettingsError(f"--label: {error}") from None
    settings, place, own = _here(address)
    command = ray_start(place, own, False, _places(engines), label)
    variables = {**os.environ, **environment(place, key_of(settings))}
    _run(settings, place, own, command, lambda: _wait_for_head(place, variables))


@cluster.command()
@ADDRESS
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@_with_faults
def apply(address: str | None, dry_run: bool) -> None:
    """Start, scale, update and end engines until the cluster matches the settings."""
    with _connected(address) as (settings, there):
        models = wanted(settings)
        steps = changes(models, there.there())
        click.echo("\n".join(steps) or "the engines match the settings")
        if any(node["is_head"] and node["engines"] for node in there.nodes()):
            click.echo("the head may run engines, which end when the head ends")
        if dry_run:
            return
        # Even without steps: the range by which Serve scales later may have changed.
        status = applying.apply(there, models, click.echo)
    sys.exit(status)


@cluster.command()
@ADDRESS
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@_with_faults
def status(address: str | None, as_json: bool) -> None:
    """Show machines, engines, and the resources that engines wait for."""
    with redirect_stdout(sys.stderr), _connected(address) as (settings, there):  # Ray prints too
        found = report(there, wanted(settings))
    click.echo(json.dumps(found) if as_json else "\n".join(lines_of(found)))


@cluster.command()
@ADDRESS
@click.argument("name", required=False)
@_with_faults
def down(address: str | None, name: str | None) -> None:
    """End the engines of one model, or of all models, after their requests have ended."""
    with _connected(address) as (settings, there):
        names = list(there.there())
        if name is not None and name not in names:
            raise ClusterError(
                f"{name} has no engines here; these models have engines: {engine.listed(names)}"
            )
        ending = names if name is None else [name]
        code = applying.down(there, ending, settings.grace, click.echo)
    sys.exit(code)


def _here(address: str | None) -> tuple[Settings, ClusterSettings, str]:
    """Returns the settings, the cluster's settings, and this machine's address. Raises
    SettingsError, ClusterError, engine.ModelError.
    """
    check_installed()
    settings = read_settings()
    if settings.cluster is None and not os.path.exists(file()):
        raise SettingsError(
            f"cluster: there is no {file()} here: run this command on a machine that has it"
        )
    wanted(settings)
    key_of(settings)
    assert settings.cluster is not None
    return settings, settings.cluster, own_address(settings.cluster, addresses_here(), address)


@contextmanager
def _connected(address: str | None) -> Iterator[tuple[Settings, Cluster]]:
    settings, _, own = _here(address)
    there = Cluster(settings, own)
    try:
        yield settings, there
    finally:
        there.close()


def _drain(address: str | None) -> None:
    settings, place, own = _here(address)
    if own == str(place.head):
        raise ClusterError(f"{own} is the head, and only other machines can be drained")
    ray_client.drain(settings, own)
    applying.drain(own, lambda: Place.taken(own), click.echo)


def _places(engines: int) -> int:
    if not 0 <= engines <= 64:
        raise SettingsError(f"--engines {engines}: must be from 0 to 64")
    return engines


def _run(
    settings: Settings,
    place: ClusterSettings,
    own: str,
    command: list[str],
    prepare: Callable[[], None],
) -> None:
    """Keep Ray and the follower running, until a signal ends both."""
    notifier = Notifier.take(os.environ)
    for folder in (place.run_dir, place.state_dir):
        os.makedirs(folder, exist_ok=True)
    lasting = environment_of_machine(place, key_of(settings))
    variables = {**os.environ, **lasting, "PYTHONUNBUFFERED": "1"}
    if os.path.exists(file()):  # Ray's workers run in other directories
        variables[CONFIG] = os.path.abspath(file())
    follower = [sys.executable, "-m", "switchyard.cluster.follower", own]
    both = [
        Watched("ray", command, variables, prepare, explain),
        Watched("the follower", follower, variables, lambda: _wait_for_port(place)),
    ]
    is_told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_told.set())
    for one in both:
        one.start()
    notifier.tell("READY=1")
    say(f"this machine is {own} in the cluster; the head is {place.head}")
    while not is_told.wait(3600):
        pass
    for one in reversed(both):
        one.stop()


def _wait_for_head(place: ClusterSettings, variables: Mapping[str, str]) -> None:
    """Waits until the head can be reached and has the same key, and prints a line every half
    minute. Ray itself would end immediately, or retry with a wrong key for minutes.
    """
    while fault := _fault_of_head(place, variables):
        now = time.monotonic()
        say(f"{fault}; trying again")
        while time.monotonic() < now + PATIENCE and _fault_of_head(place, variables):
            time.sleep(1.0)


def _wait_for_port(place: ClusterSettings) -> None:
    """Waits until the head can be reached. Prints nothing, because another process has already done
    so.
    """
    while not is_reachable(place, PATIENCE / 3):
        time.sleep(1.0)


def _fault_of_head(place: ClusterSettings, variables: Mapping[str, str]) -> str:
    if not is_reachable(place, PATIENCE / 3):
        return f"the head {place.head}:{PORT} can't be reached"
    return fault_of_key(place, variables)


def _write_key(path: str) -> None:
    """Raises OSError if the file exists, because machines may use its key."""
    with open(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as key:
        key.write(secrets.token_hex(32) + "\n")
    click.echo(f"{path} has a new key; copy the file to each machine")
