"""The command `switchyard`. Exit status: 0 good, 1 a fault was found, 2 wrong usage, 3 a model that
can't be loaded.
"""

import click

from switchyard import __version__
from switchyard.cli.bench import bench
from switchyard.cli.check import check
from switchyard.cli.doctor import doctor
from switchyard.cli.estimate import estimate
from switchyard.cli.keys import keys
from switchyard.cli.models import models
from switchyard.cli.serve import serve, shared_engine
from switchyard.cli.server import drain
from switchyard.cli.status import status
from switchyard.cli.usage import usage


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="switchyard")
def main() -> None:
    """Serve ExLlamaV2 models, and look after the server."""


for command in (
    serve,
    shared_engine,
    check,
    doctor,
    estimate,
    keys,
    models,
    bench,
    status,
    usage,
    drain,
):
    main.add_command(command)
