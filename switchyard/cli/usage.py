"""`switchyard usage` shows the usage of API keys; `switchyard ledger` manages the ledger's file."""

import contextlib
import json
import sys
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any

import click

from switchyard import settings
from switchyard.cli.server import ask, url_of_settings
from switchyard.settings import KEY

TEXTS = ("day", "key", "model")  # columns of text; the others are numbers


@click.command()
@click.option("--url", help="URL of the server. Default: the address in the settings.")
@click.option("--key", envvar=KEY, help="API key. Default: $SWITCHYARD_KEY.")
@click.option(
    "--from", "first", metavar="DAY", help="First day, in UTC. Default: the first of the month."
)
@click.option("--to", "last", metavar="DAY", help="Last day. Default: today.")
@click.option(
    "--group-by", metavar="NAMES", help="Columns to group by: any of day,key,model. Default: all."
)
@click.option("--csv", "form", flag_value="csv", help="Print comma-separated values.")
@click.option("--json", "form", flag_value="json", help="Print the server's JSON.")
def usage(
    url: str | None,
    key: str | None,
    first: str | None,
    last: str | None,
    group_by: str | None,
    form: str | None,
) -> None:
    """Show the usage of API keys, by day and model.

    A user's key shows only its own usage; an admin's key shows the usage of all keys.
    """
    query = {"from": first, "to": last, "group_by": group_by, "format": form}
    given = urllib.parse.urlencode({k: v for k, v in query.items() if v is not None})
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answer = ask(url or url_of_settings(), "GET", f"/v1/usage?{given}", headers).decode()
    if form is not None:
        click.echo(answer.rstrip("\r\n"))
        return
    for line in _table(json.loads(answer)["data"]):
        click.echo(line)


@click.group()
@click.option("--file", help="The ledger's file. Default: the `ledger` setting.")
@click.pass_context
def ledger(context: click.Context, file: str | None) -> None:
    """Back up the ledger, or delete a key's rows, even while its server runs."""
    context.obj = file


@ledger.command()
@click.argument("target")
@click.pass_obj
def backup(file: str | None, target: str) -> None:
    """Write a complete copy to the file TARGET, replacing any older copy."""
    from switchyard.app.ledger.file import back_up

    with _path(file) as path:
        back_up(path, target)
    click.echo(f"copied {path} to {target}")


@ledger.command()
@click.argument("name")
@click.pass_obj
def forget(file: str | None, name: str) -> None:
    """Permanently delete all rows of the API key NAME.

    A key that is still in use gets new rows, so remove the key first. While the command rewrites a
    large file, a running server keeps its entries in memory, and counts failed writes.
    """
    from switchyard.app.ledger import file as ledger_file

    with _path(file) as path:
        num_requests, num_days = ledger_file.forget(path, name)
    if not num_requests and not num_days:
        click.echo(f"switchyard: ledger {path} has no rows for {name}", err=True)
        sys.exit(1)
    click.echo(f"{name}: deleted {num_requests} requests and {num_days} daily sums")


@contextlib.contextmanager
def _path(file: str | None) -> Iterator[str]:
    """Yields the path of the ledger. An error inside the `with` block ends the process with a
    message.
    """
    try:
        path = file or settings.text("ledger", "")
        if not path:
            raise click.UsageError("no ledger: give --file, or set ledger in the settings")
        yield path
    except settings.SettingsError as error:
        click.echo(f"switchyard: {error}", err=True)
        sys.exit(1)


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The lines of a table with right-aligned numbers. The last line is the total."""
    if not rows:
        return ["no usage"]
    names = list(rows[0])
    total = {name: "" if name in TEXTS else sum(row[name] for row in rows) for name in names}
    total[names[0]] = "all"
    cells = [names, *([str(row[name]) for name in names] for row in [*rows, total])]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if name in TEXTS else cell.rjust(width)
            for name, cell, width in zip(names, line, widths, strict=True)
        ).rstrip()
        for line in cells
    ]
