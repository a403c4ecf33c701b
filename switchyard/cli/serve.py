"""`switchyard serve`."""

import os
import sys
from typing import Any

import click

from switchyard.cli.options import apply, with_settings


@click.command()
@with_settings
def serve(**given: Any) -> None:
    """Serve the model in MODEL_DIR, or the demo, under gunicorn."""
    apply(**given)
    command = [sys.executable, "-m", "gunicorn", "-c", "python:switchyard.server.conf"]
    os.execv(sys.executable, command)
