"""The `switchyard` command. The exit status is 0 for success, 1 if a fault was found, 2 for
incorrect usage, and 3 if a model can't be loaded.
"""

import importlib
import os

import click

from switchyard import __version__
from switchyard.settings import CONFIG, FILE

# For each command: its module, its name there, and its help in one sentence.
COMMANDS = {
    "serve": (
        "cli.serve",
        "serve",
        "Serve the model in MODEL_DIR, or the demo model, under gunicorn.",
    ),
    "engine": ("cli.serve", "shared_engine", "Run the engine of a model for several servers."),
    "cluster": ("cluster.commands", "cluster", "Run engines on several machines, with Ray."),
    "check": (
        "cli.check",
        "check",
        "Check settings, keys, models, memory and address without starting a server.",
    ),
    "doctor": (
        "cli.doctor",
        "doctor",
        "Show what a server needs, and whether this machine has it.",
    ),
    "estimate": (
        "cli.estimate",
        "estimate",
        "Estimate the GPU memory of a model without loading it.",
    ),
    "keys": ("cli.keys", "keys", "Create, list and revoke API keys."),
    "models": (
        "cli.models",
        "models",
        "List, load, swap and unload the models of a running server.",
    ),
    "bench": (
        "cli.bench",
        "bench",
        "Measure a running server: tokens per second, waits, gaps, errors.",
    ),
    "status": ("cli.status", "status", "Show each model's state, queue, batch and rates."),
    "usage": ("cli.usage", "usage", "Show the usage of API keys, by day and model."),
    "ledger": (
        "cli.usage",
        "ledger",
        "Back up the ledger, or delete a key's rows, even while its server runs.",
    ),
    "drain": (
        "cli.server",
        "drain",
        "Let this machine's server finish its requests and end.",
    ),
}


def _use(context: click.Context, option: click.Parameter, path: str | None) -> None:
    if path is None:
        return
    if not os.path.isfile(path):
        raise click.UsageError(f"--config {path}: there is no such file")
    os.environ[CONFIG] = os.path.abspath(path)


CONFIG_OPTION = click.Option(
    ["--config"],
    metavar="FILE",
    help=f"Settings file to use instead of ./{FILE}.",
    expose_value=False,
    is_eager=True,
    callback=_use,
)


class Commands(click.Group):
    """Imports a command only when it is called, because some commands import the whole server. Each
    command accepts --config, like this group.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(f"switchyard.{module}"), name)
        assert isinstance(command, click.Command)
        if CONFIG_OPTION not in command.params:
            command.params.append(CONFIG_OPTION)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="switchyard")
def main() -> None:
    """Serve ExLlamaV2 and ExLlamaV3 models, and manage the server."""


main.params.append(CONFIG_OPTION)
