"""`switchyard serve`."""

import os
import sys
from typing import Any

import click

from switchyard.cli.options import apply, with_settings

# Else glibc keeps up to 240 KB of freed memory for each of some hundred threads.
TUNABLES = "glibc.malloc.tcache_count=0"


@click.command()
@with_settings
def serve(**given: Any) -> None:
    """Serve the model in MODEL_DIR, or the demo, under gunicorn."""
    apply(**given)
    os.environ.setdefault("GLIBC_TUNABLES", TUNABLES)
    command = [sys.executable, "-m", "gunicorn", "-c", "python:switchyard.server.conf"]
    os.execv(sys.executable, command)
