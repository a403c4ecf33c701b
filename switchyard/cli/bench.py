"""`switchyard bench`: measures the speed of a running server."""

import http.client
import json
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import click

from switchyard.cli.server import connect, url_of_settings
from switchyard.settings import KEY

PROMPT = "Once upon a time there was a lighthouse, and the keeper of it said:"
PATIENCE = 300.0  # seconds to wait for the next byte


@dataclass
class Measured:
    """The times of one stream, in seconds, on the monotonic clock."""

    begin: float = 0.0
    times: list[float] = field(default_factory=list)  # arrival of each frame with text
    num_tokens: int = 0
    error: str | None = None


@click.command()
@click.option("--url", help="URL of the server. Default: the address in the settings.")
@click.option("--key", envvar=KEY, help="API key. Default: $SWITCHYARD_KEY.")
@click.option(
    "--streams",
    default="1,8,32",
    show_default=True,
    help="Numbers of concurrent streams, one after another.",
)
@click.option("--tokens", default=128, show_default=True, help="New tokens per stream.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of objects.")
def bench(url: str | None, key: str | None, streams: str, tokens: int, as_json: bool) -> None:
    """Measure a running server: tokens per second, waits, gaps, errors."""
    try:
        numbers = [int(number) for number in streams.split(",")]
    except ValueError:
        raise click.UsageError("--streams: must be numbers, separated by commas") from None
    if min(numbers) < 1 or tokens < 1:
        raise click.UsageError("--streams and --tokens must be above 0")
    base = url or url_of_settings()
    _check_reachable(base)
    rows = []
    if not as_json:
        click.echo("streams     tok/s  first p50  first p99    gap p50    gap p99  errors")
    for number in numbers:
        rows.append(row := _row(number, _measure(base, key, number, tokens)))
        if not as_json:
            click.echo(_line(row))
        if error := row["error"]:
            click.echo(f"switchyard: {base}: {error}", err=True)
    if as_json:
        click.echo(json.dumps(rows))
    sys.exit(any(row["errors"] for row in rows))


def _check_reachable(base: str) -> None:
    connection, _ = connect(base, PATIENCE)
    try:
        connection.connect()
    except OSError as error:
        hint = "start it, or give --url" if isinstance(error, ConnectionError) else "give --url"
        click.echo(f"switchyard: {base} can't be reached: {error}; {hint}", err=True)
        sys.exit(1)
    finally:
        connection.close()


def _measure(base: str, key: str | None, number: int, tokens: int) -> list[Measured]:
    """Runs `number` streams that begin at the same time, each with its own prompt."""
    measured = [Measured() for _ in range(number)]
    barrier = threading.Barrier(number)

    def run(i: int) -> None:
        barrier.wait()
        try:
            _stream(measured[i], base, key, f"{i}. {PROMPT}", tokens)
        except (OSError, ValueError, http.client.HTTPException) as error:
            measured[i].error = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=run, args=(i,)) for i in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return measured


def _stream(measured: Measured, base: str, key: str | None, prompt: str, tokens: int) -> None:
    """Raises OSError, ValueError or HTTPException."""
    connection, prefix = connect(base, PATIENCE)
    body = {"prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True}
    body |= {"temperature": 0, "stream_options": {"include_usage": True}}
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    measured.begin = time.monotonic()
    try:
        connection.request("POST", f"{prefix}/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(f"{response.status}: {response.read(300).decode(errors='replace')}")
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            frame = json.loads(line[6:])
            if "error" in frame:
                raise ValueError(str(frame["error"].get("message")))
            if any(choice["text"] for choice in frame["choices"]):
                measured.times.append(time.monotonic())
            if frame.get("usage"):
                measured.num_tokens = frame["usage"]["completion_tokens"]
    finally:
        connection.close()


def _row(number: int, measured: Sequence[Measured]) -> dict[str, float | int | str | None]:
    """Returns a row of the report, with times in milliseconds."""
    good = [one for one in measured if one.error is None and one.times]
    errors = [one.error or "no text" for one in measured if one.error or not one.times]
    first = [1000 * (one.times[0] - one.begin) for one in good]
    gaps = [1000 * (b - a) for one in good for a, b in zip(one.times, one.times[1:], strict=False)]
    begin = min((one.begin for one in good), default=0.0)
    seconds = max((one.times[-1] for one in good), default=0.0) - begin
    tokens = sum(one.num_tokens for one in good)
    return {
        "streams": number,
        "tokens_per_second": tokens / seconds if good else 0.0,
        "first_p50_ms": _quantile(first, 0.5),
        "first_p99_ms": _quantile(first, 0.99),
        "gap_p50_ms": _quantile(gaps, 0.5),
        "gap_p99_ms": _quantile(gaps, 0.99),
        "errors": len(errors),
        "error": errors[0] if errors else None,
    }


def _quantile(values: Sequence[float], share: float) -> float:
    """Returns 0 if there are no values."""
    if len(values) < 2:
        return values[0] if values else 0.0
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]


def _line(row: dict[str, float | int | str | None]) -> str:
    times = ("first_p50_ms", "first_p99_ms", "gap_p50_ms", "gap_p99_ms")
    cells = "".join(f"{row[name]:8.1f} ms" for name in times)
    return f"{row['streams']:7} {row['tokens_per_second']:9.1f}{cells}  {row['errors']:6}"
