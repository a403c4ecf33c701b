"""`switchyard drain`."""

import http.client
import json
import sys

import click

from switchyard.cli.server import connect, url_of_settings


@click.command()
@click.option("--url", help="The server's. Default: where the settings have it listen.")
def drain(url: str | None) -> None:
    """Have the server of this machine finish what it has, and end."""
    base = url or url_of_settings()
    connection, prefix = connect(base, timeout=30)
    try:
        connection.request("POST", f"{prefix}/admin/drain")
        response = connection.getresponse()
        answer = response.read()
    except (OSError, http.client.HTTPException) as error:
        click.echo(f"switchyard: {base} can't be reached: {error}", err=True)
        sys.exit(1)
    finally:
        connection.close()
    if response.status >= 400:
        told = _message(answer) or response.reason
        click.echo(f"switchyard: {base}: {response.status}: {told}", err=True)
        sys.exit(1)
    click.echo(f"{base} is draining")


def _message(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return ""
