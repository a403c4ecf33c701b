"""`switchyard estimate`: GPU memory of a model, by the loader's arithmetic. Without torch."""

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import click

from switchyard import engine
from switchyard.engine.config import PAGE_SIZE
from switchyard.engine.memory.estimate import CONTEXT, GIB, MODES, Footprint, Memory
from switchyard.engine.memory.gpus import Gpu, gpus
from switchyard.engine.model.footprint import measure

CANNOT_LOAD = 3


class Row(NamedTuple):
    """The estimate for one cache mode. Sizes in bytes."""

    cache_mode: str
    weights: int
    cache: int
    work_space: int
    total: int
    fits: bool | None  # None without a known GPU
    most_tokens: int | None  # tokens of the largest cache that fits


@click.command()
@click.argument("model_dir")
@click.option(
    "--context",
    type=click.IntRange(PAGE_SIZE),
    help="Tokens of one prompt and completion. Default: the model's own context.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 4096),
    default=1,
    show_default=True,
    help="Number of such contexts that the cache holds at once.",
)
@click.option(
    "--gpu",
    "sizes",
    type=click.FloatRange(0, min_open=True),
    multiple=True,
    metavar="GIB",
    help="Memory of a GPU; once for each of several. Default: what is free on those of this"
    " machine, if there are any.",
)
@click.option("--json", "as_json", is_flag=True, help="As an object; sizes in bytes.")
def estimate(
    model_dir: str, context: int | None, jobs: int, sizes: tuple[float, ...], as_json: bool
) -> None:
    """Estimate the GPU memory of a model without loading it.

    Exit status: 1 if nothing fits, 3 if the model can't be loaded at all.
    """
    free = [max(int(size * GIB) - CONTEXT, 0) for size in sizes] or usable(gpus())
    try:
        found = engine.ModelDir.read(model_dir)
        config = engine.ModelConfig(model_dir, found.path.name, max_seq_len=context)
        config = dataclasses.replace(config, max_batch_size=max(jobs, config.max_batch_size))
        [footprint], lengths = measure(config)
    except engine.ModelError as error:
        message = str(error)
        if error.param == "max_seq_len":
            message = message.replace("max_seq_len", "--context", 1)
        if as_json:
            click.echo(json.dumps({"error": message}))
        click.echo(f"switchyard: {message}", err=True)
        sys.exit(CANNOT_LOAD)
    tokens = lengths.max_seq_len
    rows = list(each_mode(config, footprint, tokens, jobs, free))
    if as_json:
        told = {"model": model_dir, "format": found.format, "context": tokens, "jobs": jobs}
        modes = [row._asdict() for row in rows]
        click.echo(json.dumps(told | {"gpus": free, "cache_modes": modes}))
    else:
        [architecture] = found.config["architectures"]
        click.echo(f"{architecture}, {found.format}; {jobs} x {tokens} tokens of cache")
        for line in (*_table(rows), *_conclusion(config, rows, tokens, jobs, free)):
            click.echo(line)
    sys.exit(bool(free) and not any(row.fits for row in rows))


def usable(found: Sequence[Gpu]) -> list[int]:
    """Bytes of each GPU that the loader will find free."""
    return [max(gpu.free - CONTEXT, 0) for gpu in found]


def each_mode(
    config: engine.ModelConfig, footprint: Footprint, context: int, jobs: int, free: Sequence[int]
) -> Iterator[Row]:
    tokens = jobs * context
    memory = Memory(config, [footprint], free, context)
    for mode in MODES:
        used = memory.place(mode, tokens) if free else []
        num_gpus = sum(map(bool, used)) or len(free) or 1
        cache, beside = footprint.cache(mode, tokens), footprint.beside(mode, tokens) * num_gpus
        yield Row(
            cache_mode=mode,
            weights=footprint.weights,
            cache=cache,
            work_space=beside,
            total=footprint.weights + cache + beside,
            fits=bool(used) if free else None,
            most_tokens=memory.largest(mode) if free else None,
        )


def _table(rows: Sequence[Row]) -> Iterator[str]:
    yield "cache_mode   weights    cache  work space      sum  GiB"
    for row in rows:
        sizes = (row.weights, row.cache, row.work_space, row.total)
        numbers = [_gib(size).rjust(n) for size, n in zip(sizes, (11, 9, 12, 9), strict=True)]
        line = f"{row.cache_mode:<9}{''.join(numbers)}"
        if row.fits is not None:
            most = (
                f"up to {row.most_tokens} tokens of cache" if row.most_tokens else "no room for any"
            )
            line += f"  {'✓ fits' if row.fits else '✗ too large'}: {most}"
        yield line


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}" if size >= GIB / 10 else f"{size / GIB:.3f}"


def _conclusion(
    config: engine.ModelConfig, rows: Sequence[Row], context: int, jobs: int, free: Sequence[int]
) -> Iterator[str]:
    if not free:
        yield "--gpu 24 says what fits on a GPU of 24 GiB."
        return
    sizes = " + ".join(f"{size / GIB:.1f}" for size in free)
    yield (
        f"GPU: {sizes} GiB free behind what CUDA takes, {CONTEXT / GIB}, less a gpu_reserve of"
        f" {config.gpu_reserve}"
    )
    first = next((row for row in rows if row.fits), None)
    if first is not None:
        yield (
            f"Settings: max_seq_len = {context}, cache_tokens = {context * jobs}, cache_mode ="
            f' ["{first.cache_mode}"]'
        )
    elif most := max(row.most_tokens or 0 for row in rows):
        yield f"A cache of up to {most} tokens fits: a smaller --context, or fewer --jobs"
    else:
        yield "Not even the weights fit: fewer bits, or more GPUs"
