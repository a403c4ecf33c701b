"""`switchyard estimate`: estimates the GPU memory of a model as the loader does, without torch."""

import dataclasses
import json
import pathlib
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from switchyard import engine
from switchyard.engine.config import PAGE_SIZE, Lora, ModelConfig
from switchyard.engine.memory.estimate import CONTEXT, GIB
from switchyard.engine.memory.gpus import gpus
from switchyard.engine.memory.plan import Plan, Row, plan
from switchyard.engine.memory.residency import LIBRARIES, host_need
from switchyard.engine.model.loadable import adapter_files, check_for_cpu, check_loras
from switchyard.engine.model.model_dir import read_config
from switchyard.engine.model.weights import check_files

CANNOT_LOAD = 3
MASTER = 30 * 2**20  # bytes of gunicorn's master process


def _size(value: str) -> float:
    """The memory of a GPU in GiB, whatever the unit, because a card sold as 24 GB has 24 GiB."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *(?:G|GB|GiB)?", value, re.IGNORECASE)
    if found is None or not float(found[1]):
        raise click.BadParameter(f"{value!r} must be a size such as 24 or 24GB")
    return float(found[1])


class _Bits(click.FloatRange):
    """Bits per weight."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} must be a number from 2 to 16, such as 4.0", param, ctx)


@click.command()
@click.argument("model_dir")
@click.option(
    "--bits",
    type=_Bits(2, 16),
    help="Bits per weight, such as 4.0, to estimate from config.json before a download.",
)
@click.option(
    "--context",
    type=click.IntRange(PAGE_SIZE),
    help="Tokens of one prompt and its completion. Default: the model's context, or what fits.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 4096),
    default=1,
    show_default=True,
    help="Number of contexts that the cache should hold at once.",
)
@click.option(
    "--gpu",
    "sizes",
    type=_size,
    multiple=True,
    metavar="SIZE",
    help="Memory of a GPU, such as 24GB; repeatable. Default: the free memory of this machine's"
    " GPUs, if any.",
)
@click.option("--draft", metavar="DIR", help="Directory of a draft model.")
@click.option(
    "--lora", "loras", metavar="DIR", multiple=True, help="Directory of a LoRA; repeatable."
)
@click.option("--tensor-parallel", is_flag=True, help="Split each layer over all GPUs.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object with sizes in bytes.")
def estimate(
    model_dir: str,
    bits: float | None,
    context: int | None,
    jobs: int,
    sizes: tuple[float, ...],
    draft: str | None,
    loras: tuple[str, ...],
    tensor_parallel: bool,
    as_json: bool,
) -> None:
    """Estimate the GPU memory of a model without loading it.

    The exit status is 1 if nothing fits, and 3 if the model can't be loaded at all.
    """
    whole = [int(size * GIB) for size in sizes] or [gpu.free for gpu in gpus()]
    try:
        config = ModelConfig(
            model_dir,
            pathlib.Path(model_dir).name,
            max_seq_len=context,
            draft_model=draft,
            loras=tuple(Lora(path, path) for path in loras),
            tensor_parallel=tensor_parallel,
        )
        config = dataclasses.replace(config, max_batch_size=max(jobs, config.max_batch_size))
        _check_whole(model_dir, bits)
        check_loras(config)
        adapters = sum(file.stat().st_size for lora in config.loras for file in adapter_files(lora))
        free = [max(size - CONTEXT - adapters, 0) for size in whole]
        found = plan(config, jobs, free, bits)
        weights = _format(model_dir, bits)
        ram = None if bits is not None else _ram(config, jobs * found.context)
    except engine.ModelError as error:
        message = str(error)
        if error.param == "max_seq_len":
            message = message.replace("max_seq_len", "--context", 1)
        if as_json:
            click.echo(json.dumps({"error": message}))
        click.echo(f"switchyard: {message}", err=True)
        sys.exit(CANNOT_LOAD)
    if as_json:
        told = {"model": model_dir, "format": weights, "context": found.context, "jobs": jobs}
        modes = [dataclasses.asdict(row) for row in found.rows]
        told |= {
            "gpus": free,
            "ram": ram and ram[0],
            "settings": found.settings,
            "cache_modes": modes,
        }
        click.echo(json.dumps(told))
    else:
        [architecture] = read_config(model_dir)["architectures"]
        click.echo(f"{architecture}, {weights}; {jobs} x {found.context} tokens of cache")
        for line in _table(found.rows):
            click.echo(line)
        for i, size in enumerate(whole):
            click.echo(_of_gpu(i, size, adapters, config.gpu_reserve))
        for line in _conclusion(found, context is not None):
            click.echo(line)
        if ram is not None:
            size, tokens = ram
            click.echo(
                f"Without a GPU, in float32: {size / GIB:.1f} GiB of RAM,"
                f" with {tokens} tokens of cache"
            )
    fits = found.settings is not None and context in (None, found.settings["max_seq_len"])
    sys.exit(bool(free) and not (fits or any(row.fits for row in found.rows)))


def _check_whole(model_dir: str, bits: float | None) -> None:
    """Raises ModelError for a directory without weights, unless `bits` replaces them."""
    root = pathlib.Path(model_dir)
    if bits is None and (root / "config.json").is_file() and not any(root.glob("*.safetensors")):
        check_files(root)
        read_config(model_dir)
        raise engine.ModelError(
            f"{model_dir} has no .safetensors file: to use only config.json, add --bits 4.0"
        )


def _format(model_dir: str, bits: float | None) -> str:
    if bits is None:
        return engine.ModelDir.read(model_dir).format
    return f"{bits:g} bits per weight, from config.json"


def _ram(config: ModelConfig, tokens: int) -> tuple[int, int] | None:
    """The bytes that a server takes without a GPU, and the number of tokens in its cache, which is
    at least the default. Returns None if a server can't serve the model in this way.
    """
    assert isinstance(config.cache_tokens, int)  # the default
    tokens = max(tokens, config.cache_tokens)
    try:
        check_for_cpu(engine.ModelDir.read(config.path), "cpu")
        return MASTER + LIBRARIES + host_need(config).total(tokens), tokens
    except engine.ModelError:
        return None


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
            line += f"  {'✓' if row.fits else '!' if row.most_tokens else '✗'} {most}"
        yield line


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}" if size >= GIB / 10 else f"{size / GIB:.3f}"


def _of_gpu(number: int, size: int, adapters: int, reserve: float) -> str:
    left = max(size - CONTEXT - adapters - int(reserve * GIB), 0)
    loras = f", {adapters / GIB:.2f} for LoRAs" if adapters else ""
    return (
        f"GPU {number}: {size / GIB:.1f} GiB, minus {CONTEXT / GIB:.1f} for CUDA{loras} and"
        f" {reserve} reserved = {left / GIB:.1f} GiB for the model"
    )


def _conclusion(found: Plan, is_asked: bool) -> Iterator[str]:
    """`is_asked`: whether the user gave the context."""
    settings = found.settings
    if found.rows[0].fits is None:
        yield "To see what fits on a GPU with 24 GiB, add --gpu 24GB."
    elif settings is None and (most := max(row.most_tokens or 0 for row in found.rows)):
        yield f"✗ At most {most:,} tokens of cache fit: use fewer --jobs"
    elif settings is None:
        yield "✗ Not even the weights fit: use fewer bits, or more GPU memory"
    else:
        context = settings["max_seq_len"]
        if context < found.context:
            mark, cure = ("✗", ": reduce --context or --jobs") if is_asked else ("!", "")
            yield f"{mark} {found.context:,} tokens don't fit; at most {context:,} do{cure}"
        mode = json.dumps(settings["cache_mode"])
        tokens = settings["cache_tokens"]
        yield "Settings:"
        yield f"  max_seq_len = {context}\n  cache_tokens = {tokens}\n  cache_mode = {mode}"
        if copies := next((row.copies for row in found.rows if row.fits), None):
            yield f"In addition, for speed: unpacked_weights with {copies / GIB:.1f} GiB"
