"""`switchyard drain`."""

import click

from switchyard.cli.server import ask, url_of_settings


@click.command()
@click.option("--url", help="The server's. Default: where the settings have it listen.")
def drain(url: str | None) -> None:
    """Have the server of this machine finish what it has, and end."""
    base = url or url_of_settings()
    ask(base, "POST", "/admin/drain")
    click.echo(f"{base} is draining")
