"""`switchyard serve`."""

import os
import sys
from typing import Any

import click

from switchyard import engine
from switchyard.app import SettingsError
from switchyard.cli.options import read, with_settings

# Else glibc keeps up to 240 KB of freed memory for each of some hundred threads.
TUNABLES = "glibc.malloc.tcache_count=0"


@click.command()
@with_settings
def serve(**given: Any) -> None:
    """Serve the model in MODEL_DIR, or the demo, under gunicorn."""
    try:
        read(**given).served()
    except (SettingsError, engine.ModelError) as error:
        click.echo(f"switchyard: {error}", err=True)
        sys.exit(1)
    os.environ.setdefault("GLIBC_TUNABLES", TUNABLES)
    os.execv(sys.executable, [sys.executable, "-m", "switchyard"])
