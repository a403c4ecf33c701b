"""`switchyard doctor`: what this machine has for a server, and what is missing."""

import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import click

from switchyard.engine.memory.gpus import AMPERE, NEEDED_DRIVER, Gpu, gpus

PACKAGES = ("torch", "exllamav2", "flash-attn", "gunicorn", "flask", "tokenizers", "llguidance")
PROBE = """
import json, os
os.environ["EXLLAMA_NO_SDPA"] = "1"
told = {"cuda": None, "sees": 0, "extension": None}
try:
    import torch
    told |= {"cuda": torch.version.cuda, "sees": torch.cuda.device_count()}
    import exllamav2_ext
    told["extension"] = True
except Exception as error:
    told["extension"] = str(error)
print(json.dumps(told))
"""


MARKS = {True: "✓", None: "-", False: "✗"}


class Line(NamedTuple):
    what: str
    is_good: bool | None  # None: it lacks what a server can do without
    told: str
    follows: str = ""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As a list of objects.")
def doctor(as_json: bool) -> None:
    """Show what this machine has for a server, and what it lacks."""
    lines = list(look())
    if as_json:
        click.echo(json.dumps([line._asdict() for line in lines]))
    else:
        for what, is_good, told, follows in lines:
            click.echo(f"{MARKS[is_good]} {what}: {told}")
            if follows:
                click.echo(f"    {follows}")
    sys.exit(any(line.is_good is False for line in lines))


def look() -> Iterator[Line]:
    yield Line("Python", True, platform.python_version())
    versions = {name: _version(name) for name in PACKAGES}
    for name, version in versions.items():
        lacks = None if name == "flash-attn" else False
        told = version or "is not installed"
        yield Line(name, True if version else lacks, told, "" if version else _cure(name))
    found = gpus()
    if not found:
        yield Line(
            "GPU",
            None,
            "none that NVIDIA's driver knows",
            "Models run on the CPU, for development: Llama architecture, float16 or float32.",
        )
    else:
        yield from _of_gpus(found, versions, probe())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield Line("open files", soft >= 1024 or hard >= 1024, f"{soft}, may be raised to {hard}")


def _of_gpus(
    found: list[Gpu], versions: dict[str, str | None], probe: dict[str, Any]
) -> Iterator[Line]:
    for gpu in found:
        told = f"{gpu.name}, {gpu.free >> 20} of {gpu.total >> 20} MiB free, driver {gpu.driver}"
        is_new = gpu.driver_major >= NEEDED_DRIVER
        follows = "" if is_new else f"It takes a driver from {NEEDED_DRIVER} on."
        yield Line("GPU", is_new, told, follows)
        if gpu.capability < AMPERE:
            needed = f"flash-attn needs {_dotted(AMPERE)}, and paged attention flash-attn."
            yield Line("capability", None, _dotted(gpu.capability), needed)
    if probe["cuda"] is None:
        yield Line("CUDA", False, "torch has none", "Install torch's build with CUDA.")
    elif not probe["sees"]:
        told = f"torch for CUDA {probe['cuda']} sees no GPU"
        yield Line("CUDA", False, told, "The driver may be older than that; see `nvidia-smi`.")
    else:
        yield Line("CUDA", True, f"torch for CUDA {probe['cuda']} sees {probe['sees']}")
    if probe["extension"] is not True:
        cure = "Install a wheel of exllamav2 for this torch, or a compiler: docs/deployment.md."
        yield Line("extension", False, str(probe["extension"]), cure)


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cure(name: str) -> str:
    if name == "flash-attn":
        return "Needed on a GPU alone."
    return "Install it: `pip install switchyard`, or scripts/bootstrap in a checkout."


def probe() -> dict[str, Any]:
    """Versions and devices by torch, in a process of its own: the import takes seconds, and might
    hang.
    """
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE],
            capture_output=True,
            env=environment,
            timeout=120,
            text=True,
        )
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return told
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        return {"cuda": None, "sees": 0, "extension": f"torch can't be asked: {error}"}
