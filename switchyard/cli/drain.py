"""`switchyard drain`."""

import http.client
import json
import sys
import urllib.error
import urllib.request

import click

from switchyard.app.config import read_settings


@click.command()
@click.option("--url", help="The server's. Default: where the settings have it listen.")
def drain(url: str | None) -> None:
    """Have the server of this machine finish what it has, and end."""
    base = url or f"http://{read_settings().bind}"
    request = urllib.request.Request(f"{base.rstrip('/')}/admin/drain", method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            click.echo(f"{base} is {json.load(response)['status']}")
    except urllib.error.HTTPError as error:
        click.echo(f"switchyard: {base}: {error.code}: {_message(error)}", err=True)
        sys.exit(1)
    except (OSError, ValueError, http.client.HTTPException) as error:
        click.echo(f"switchyard: {base} can't be reached: {error}", err=True)
        sys.exit(1)


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (OSError, ValueError, LookupError, TypeError):
        return str(error.reason)
