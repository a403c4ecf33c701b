"""`switchyard status`: shows the state of a running server."""

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import click

from switchyard.cli.server import ask, url_of_settings
from switchyard.settings import KEY

PAUSE = 2.0  # seconds between two updates


@click.command()
@click.option("--url", help="URL of the server. Default: the address in the settings.")
@click.option("--key", envvar=KEY, help="API key. Default: $SWITCHYARD_KEY.")
@click.option("--watch", is_flag=True, help="Repeat every two seconds, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print the server's JSON.")
def status(url: str | None, key: str | None, watch: bool, as_json: bool) -> None:
    """Show each model's state, queue, batch and rates. With a user's key, this command shows only
    states and totals.
    """
    base = url or url_of_settings()
    click.echo(_text(base, key, as_json))
    with contextlib.suppress(KeyboardInterrupt):
        while watch:
            time.sleep(PAUSE)
            text = _text(base, key, as_json)
            click.clear()  # does nothing if the output is not a terminal
            click.echo(text)


def _text(base: str, key: str | None, as_json: bool) -> str:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answer = ask(base, "GET", "/v1/status", headers)
    return answer.decode().rstrip() if as_json else "\n".join(_lines(json.loads(answer)))


def _lines(told: dict[str, Any]) -> Iterator[str]:
    yield f"switchyard {told['version']}, up for {_duration(told['uptime'])}"
    for model in told["models"]:
        progress = "" if model["progress"] is None else f" {model['progress']:.0%}"
        jobs = f"{model['running']} running, {model['waiting']} waiting"
        yield f"{model['id']}: {model['state']}{progress}, {jobs}"
        if "tokens_per_second" in model:
            yield from (f"  {line}" for line in _whole(model))
    if "streams" in told:
        yield f"{told['streams']} streams, {told['websockets']} WebSockets"
    if "threads" in told:
        yield f"{told['threads']['busy']} of {told['threads']['all']} request threads busy"


def _whole(model: dict[str, Any]) -> Iterator[str]:
    most = f"at most {model['max_batch_size']} running and {model['max_pending']} waiting"
    if "max_seq_len" in model:
        most += f", {model['max_seq_len']} tokens each, cache {model['cache_mode']}"
    yield most
    yield (
        f"{model['tokens_per_second']:g} tokens/s, {model['prompt_tokens_per_second']:g} of prompts"
        + ("" if model["iteration_ms"] is None else f", {model['iteration_ms']:g} ms per step")
    )
    if model["last_iteration_age"] > 1:
        yield f"the last step was {model['last_iteration_age']:g} seconds ago"
    if pages := model.get("pages"):
        yield f"{pages['referenced']} of {pages['all']} pages in use, {pages['cached']} kept"
    for gpu in model["gpus"]:
        used = (gpu["total"] - gpu["free"]) / 2**30
        yield f"{gpu['name']}: {used:.1f} of {gpu['total'] / 2**30:.1f} GiB"
    if model["recoveries"]:
        yield f"recovered {model['recoveries']} times"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
