"""`switchyard serve`, and `switchyard engine`, which runs an engine for several servers."""

import importlib.util
import os
import sys
from typing import Any

import click

from switchyard import engine
from switchyard.app import SettingsError
from switchyard.cli.options import read, with_model_settings, with_settings
from switchyard.engine.models.opening import own_config
from switchyard.engine.sources import is_source

# Without it, glibc keeps up to 240 KB of freed memory for each of over a hundred threads.
TUNABLES = "glibc.malloc.tcache_count=0"


@click.command()
@with_settings
def serve(**given: Any) -> None:
    """Serve the model in MODEL_DIR, or the demo model, under gunicorn."""
    try:
        read(**given).served()
    except (SettingsError, engine.ModelError) as error:
        click.echo(f"switchyard: {error}", err=True)
        sys.exit(1)
    for package in ("gunicorn", "torch", "exllamav2"):
        if importlib.util.find_spec(package) is None:
            cure = f"{package} is not installed: a server needs switchyard[server]"
            click.echo(f"switchyard: {cure}", err=True)
            sys.exit(1)
    os.environ.setdefault("GLIBC_TUNABLES", TUNABLES)
    os.execv(sys.executable, [sys.executable, "-m", "switchyard"])


@click.command("engine")
@with_model_settings
@click.option("--at", help="Where to listen: unix:PATH, or HOST:PORT. Default: the `at` setting.")
@click.option("--name", help="Name of the model, if the settings have several.")
def shared_engine(at: str | None, name: str | None, **given: Any) -> None:
    """Run the engine of a model for several servers.

    The servers set link = "socket".
    """
    try:
        settings = read(**given)
        config = _chosen([one.config for one in settings.served()], name)
        places = [at] if at is not None else list(config.at)
        if len(places) != 1 or is_source(places[0]):
            named = [one for one in config.at if not is_source(one)]
            choice = f"one of {', '.join(named)}" if named else "unix:PATH or HOST:PORT"
            raise click.UsageError(f"--at: must be this engine's own address, {choice}")
        from switchyard.server.shared_engine import run

        sys.exit(run(own_config(config), places[0], settings))
    except (SettingsError, engine.ModelError) as error:
        click.echo(f"switchyard: {error}", err=True)
        sys.exit(1)


def _chosen(configs: list[engine.ModelConfig], name: str | None) -> engine.ModelConfig:
    """Raises click.UsageError."""
    names = [one.name for one in configs]
    if name is None and len(configs) == 1:
        return configs[0]
    if name not in names:
        raise click.UsageError(f"--name: must be one of {', '.join(names)}")
    return configs[names.index(name)]
