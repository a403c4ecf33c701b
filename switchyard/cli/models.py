"""`switchyard models`: shows and changes the models of a running server."""

import json
import sys
import tomllib
import urllib.parse
from typing import Any

import click

from switchyard.cli.server import ask, url_of_settings
from switchyard.settings import KEY

PATIENCE = 3600.0  # seconds to wait for the next news of a load

Context = dict[str, Any]


@click.group()
@click.option("--url", help="URL of the server. Default: the address in the settings.")
@click.option("--key", envvar=KEY, help="An admin's API key. Default: $SWITCHYARD_KEY.")
@click.pass_context
def models(context: click.Context, url: str | None, key: str | None) -> None:
    """List, load, swap and unload the models of a running server."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    context.obj = {"base": url or url_of_settings(), "headers": headers}


LOADS = {"start": "", "demand": ", on demand", "manual": ", only by an operator"}


@models.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print the server's JSON.")
@click.pass_obj
def show(there: Context, as_json: bool) -> None:
    """List models with their states and aliases, and the directories in models_dir that can be
    loaded.
    """
    answer = ask(there["base"], "GET", "/v1/models", there["headers"])
    rows = json.loads(answer)["data"]
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        state = row["status"]
        told = state["value"]
        if state["progress"] is not None:
            told += f" {state['progress']:.0%}"
        told += LOADS[state["load"]]
        if row["aliases"]:
            told += f", also {', '.join(row['aliases'])}"
        click.echo(f"{row['id']}: {told}")
        if state["reason"]:
            click.echo(f"  {state['reason']}")
    answer = ask(there["base"], "GET", "/v1/model/list", there["headers"])
    for name in [card["id"] for card in json.loads(answer)["data"]][len(rows) :]:
        click.echo(f"{name}: a directory in models_dir")


@models.command()
@click.argument("name")
@click.option("--model", help="A directory in models_dir, or the path of a configured model.")
@click.option("--set", "settings", multiple=True, help="NAME=VALUE, as in a [[models]] table.")
@click.option(
    "--way",
    type=click.Choice(["beside", "drain"]),
    help="How to swap. Default: beside if memory allows, otherwise drain.",
)
@click.pass_obj
def load(
    there: Context, name: str, model: str | None, settings: tuple[str, ...], way: str | None
) -> None:
    """Load a model, or swap the model NAME, and wait until the load is done."""
    body: dict[str, Any] = dict(_setting(text) for text in settings)
    body |= {k: v for k, v in (("model", model), ("way", way)) if v is not None}
    path = f"/admin/models/{urllib.parse.quote(name, safe='')}"
    answer = ask(there["base"], "POST", path, there["headers"], body, PATIENCE, _show_progress)
    events = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith(b"data: ")]
    if "error" in events[-1]:
        click.echo(f"switchyard: {events[-1]['error']['message']}", err=True)
        sys.exit(1)
    how = {"beside": ", beside the old one", "drain": ", after the old one ended"}
    told = how.get(events[-1]["way"], "")
    click.echo(f"{name} was loaded in {events[-1]['seconds']:.1f} s{told}")


def _show_progress(line: bytes) -> None:
    """Shows the progress on a terminal, on a line that is updated in place."""
    if line.startswith(b"data: ") and sys.stderr.isatty():
        progress = json.loads(line[6:]).get("progress")
        share = "" if progress is None else f"loading, {progress:.0%}"
        click.echo(f"\r{share:<16}\r", nl=False, err=True)


@models.command()
@click.argument("name")
@click.option(
    "--drain", type=float, help="Seconds for running jobs to finish. Default: the model's setting."
)
@click.pass_obj
def unload(there: Context, name: str, drain: float | None) -> None:
    """Unload a model after its last job."""
    path = f"/admin/models/{urllib.parse.quote(name, safe='')}"
    query = "" if drain is None else f"?drain={drain:g}"
    ask(there["base"], "DELETE", path + query, there["headers"])
    click.echo(
        f"{name} will be unloaded after its last job, if it has any. After that, a request that"
        ' names it loads it again, unless it has `load = "manual"`.'
    )


@models.command()
@click.argument("alias")
@click.argument("name")
@click.pass_obj
def alias(there: Context, alias: str, name: str) -> None:
    """Make ALIAS refer to the model NAME."""
    path = f"/admin/aliases/{urllib.parse.quote(alias, safe='')}"
    told = json.loads(ask(there["base"], "PUT", path, there["headers"], {"model": name}))
    before = f", instead of {told['before']}" if told["before"] else ""
    click.echo(f"{alias} now refers to {told['model']}{before}")


def _setting(text: str) -> tuple[str, Any]:
    """Returns name and value. The value is written as in the settings file, but strings need no
    quotes. Raises click.UsageError.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise click.UsageError(f"--set {text}: must be NAME=VALUE")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value
