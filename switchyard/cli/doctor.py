"""`switchyard doctor`: shows what a server needs and whether this machine has it."""

import importlib.metadata
import json
import os
import pathlib
import platform
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from typing import Any, NamedTuple

import click

from switchyard import engine
from switchyard.addresses import addresses_here, answers_outside
from switchyard.app import SettingsError, read_settings
from switchyard.engine.backends.exl3 import check_capability, check_import, check_installed
from switchyard.engine.memory.gpus import AMPERE, NEEDED_DRIVER, Gpu, gpus

PACKAGES = ("torch", "exllamav2", "flash-attn", "gunicorn", "flask", "tokenizers", "llguidance")
OPTIONAL = {"flash-attn": "Needed only with a GPU."}
PROBE = """
import json, os
os.environ["EXLLAMA_NO_SDPA"] = "1"
found = {"cuda": None, "sees": 0, "extension": None, "exl3": None}
for key, name in (("extension", "exllamav2_ext"), ("exl3", "exllamav3_ext")):
    try:
        import torch
        found |= {"cuda": torch.version.cuda, "sees": torch.cuda.device_count()}
        __import__(name)
        found[key] = True
    except Exception as error:
        found[key] = str(error)
print(json.dumps(found))
"""


CHECKOUT = pathlib.Path(__file__).parents[2]
# These exist only in a checkout.
PINS = (CHECKOUT / "requirements-cuda.txt", CHECKOUT / "requirements-exl3.txt")
# A line with a wheel: its package, and the CUDA, torch, Python and platform it was built for.
PIN = re.compile(
    r"^(?P<name>[\w-]+) @ \S*/[^/-]+-(?P<version>[\d.]+)\+cu(?P<cuda>\d+)\.?torch(?P<torch>[\d.]+)"
    r"[^-]*-(?P<tag>\w+)-\w+-(?P<platform>\w+)\.whl\S* ; python_version == \"(?P<python>[\d.]+)\"$",
    re.MULTILINE,
)
MARKS = {True: "✓", None: "-", False: "✗"}


class Line(NamedTuple):
    what: str
    is_good: bool | None  # None: missing, but a server can do without it
    told: str
    follows: str = ""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of objects.")
def doctor(as_json: bool) -> None:
    """Show what a server needs, and whether this machine has it."""
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
        lacks = None if name in OPTIONAL else False
        told = version or "not installed"
        yield Line(name, True if version else lacks, told, "" if version else _cure(name))
    found = gpus()
    if not found:
        yield _of_exl3([], {})
        yield Line(
            "GPU",
            None,
            "NVIDIA's driver reports none",
            "Models run on the CPU, for development: Llama architecture, float16 or float32.",
        )
    else:
        probed = probe()
        has_exl3 = _of_exl3(found, probed)
        yield has_exl3
        yield from _of_gpus(found, probed, bool(has_exl3.is_good))
    for pins in PINS:
        if pins.is_file():
            is_needed = bool(found) and pins is PINS[0]
            yield of_pins(pins, platform.python_version(), is_needed)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield Line("open files", soft >= 1024 or hard >= 1024, f"{soft}, may be raised to {hard}")
    yield from _of_cluster()


def _of_cluster() -> Iterator[Line]:
    """Reports whether other networks may reach the cluster's ports, if the settings have a
    cluster.
    """
    try:
        cluster = read_settings().cluster
    except SettingsError as error:
        yield Line("settings", False, str(error))
        return
    if cluster is None:
        return
    found = answers_outside(cluster, addresses_here())
    for address, ports in found.items():
        told = (
            f"{len(ports)} ports also accept connections at {address}, outside {cluster.network}:"
        )
        told += f" {ports[0]}"
        told += f" to {ports[-1]}" * (len(ports) > 1)
        yield Line("cluster", None, told, "Block all other networks with a firewall.")
    if not found:
        yield Line(
            "cluster", True, f"none of its ports accepts connections outside {cluster.network}"
        )


def _of_gpus(found: list[Gpu], probe: dict[str, Any], has_exl3: bool) -> Iterator[Line]:
    for gpu in found:
        told = f"{gpu.name}, {gpu.free >> 20} of {gpu.total >> 20} MiB free, driver {gpu.driver}"
        is_new = gpu.driver_major >= NEEDED_DRIVER
        follows = "" if is_new else f"It needs driver {NEEDED_DRIVER} or newer."
        yield Line("GPU", is_new, told, follows)
        if gpu.capability < AMPERE:
            needed = f"flash-attn needs {_dotted(AMPERE)}, and paged attention needs flash-attn."
            yield Line("capability", None, _dotted(gpu.capability), needed)
    if probe["cuda"] is None:
        yield Line("CUDA", False, "torch has none", "Install a torch build with CUDA.")
    elif not probe["sees"]:
        told = f"torch for CUDA {probe['cuda']} sees no GPU"
        yield Line("CUDA", False, told, "The driver may be too old for it; see `nvidia-smi`.")
    else:
        yield Line("CUDA", True, f"torch for CUDA {probe['cuda']} sees {probe['sees']}")
    if probe["extension"] is not True and has_exl3:
        yield Line("extension", None, str(probe["extension"]), "Not needed for EXL3 models.")
    elif probe["extension"] is not True:
        cure = "Install a wheel of exllamav2 for this torch, or a compiler: docs/deployment.md."
        yield Line("extension", False, str(probe["extension"]), cure)


def _of_exl3(found: list[Gpu], probe: dict[str, Any]) -> Line:
    """Reports whether the packages for EXL3 models are installed, and whether a GPU can run these
    models.
    """
    try:
        check_installed()
        check_import(probe.get("exl3", True))
        for i, gpu in enumerate(found):
            check_capability(i, gpu.name, gpu.capability)
    except engine.ModelError as error:
        return Line("exllamav3", None, str(error), "Needed only for EXL3 models.")
    has_compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    header = pathlib.Path(sysconfig.get_path("include"), "Python.h")
    if not has_compiler or not header.is_file():
        lacks = f"{header}" if has_compiler else "a compiler"
        told = f"Triton needs gcc or clang, and Python's headers: {lacks} is missing"
        return Line("exllamav3", None, told, "Needed only for EXL3 models.")
    return Line("exllamav3", True, f"{_version('exllamav3')}, for EXL3 models")


def of_pins(pins: pathlib.Path, python: str, is_needed: bool) -> Line:
    """Reports whether the wheels in a requirements file for GPUs fit each other and this Python."""
    text = pins.read_text()
    torch = re.search(r"^torch==(\S+)", text, re.MULTILINE)
    wheels = [found.groupdict() for found in PIN.finditer(text)]
    faults = [fault for wheel in wheels for fault in _disagreements(wheel, torch and torch[1])]
    cudas = {wheel["cuda"][:2] for wheel in wheels}
    if len(cudas) > 1:
        faults.append(f"wheels are for CUDA {' and '.join(sorted(cudas))}")
    if faults or torch is None:
        return Line(pins.name, False, "; ".join(faults) or "it pins no torch")
    own = [wheel for wheel in wheels if python.startswith(f"{wheel['python']}.")]
    this = sysconfig.get_platform().replace("-", "_")
    if own and all(wheel["platform"] == this for wheel in own):
        names = ", ".join(f"{wheel['name']} {wheel['version']}" for wheel in own)
        told = f"{names} are for torch {torch[1]}, CUDA {cudas.pop()} and this Python"
        return Line(pins.name, True, told, "" if is_needed else "Needed only with a GPU.")
    pythons = sorted({wheel["python"] for wheel in wheels})
    told = f"for Python {', '.join(pythons)} on {wheels[0]['platform']}; this is {python} on {this}"
    cure = "They can't be installed here: docs/deployment.md has other ways."
    return Line(pins.name, False if is_needed else None, told, cure)


def _disagreements(wheel: dict[str, str], torch: str | None) -> Iterator[str]:
    name = f"{wheel['name']} for Python {wheel['python']}"
    if wheel["tag"] != f"cp{wheel['python'].replace('.', '')}":
        yield f"{name} is a wheel for {wheel['tag']}"
    if torch is None or not f"{torch}.".startswith(f"{wheel['torch']}."):
        yield f"{name} is built for torch {wheel['torch']}, but torch is {torch}"


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cure(name: str) -> str:
    if name in OPTIONAL:
        return OPTIONAL[name]
    return "Install it: `pip install 'switchyard[server]'`, or scripts/bootstrap in a checkout."


def probe() -> dict[str, Any]:
    """Returns the versions and devices that torch reports. Runs a separate process, because
    importing torch takes seconds and might hang.
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
        return {"cuda": None, "sees": 0, "extension": f"torch can't be queried: {error}"}
