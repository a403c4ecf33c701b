"""Chooses the packages that a server needs on this machine. Replaces requirements.txt.

packages.py choose STAMP        prints the list; STAMP has the list that was installed last
packages.py install FILE NAME   installs the packages in FILE, as NAME, for this Python

This script needs no packages itself. If no list fits, it prints the reason and exits with status 3.
"""

import functools
import pathlib
import platform
import re
import signal
import subprocess
import sys
import tempfile

from preflight import ROOT, fail, setting, without_packages

without_packages("switchyard", "switchyard.engine", "switchyard.engine.memory")

from switchyard.engine.memory import gpus  # noqa: E402

USUAL, CUDA, COMPILED = "requirements.txt", "requirements-cuda.txt", "requirements-cuda-source.txt"
EXL3 = "requirements-exl3.txt"
TORCH_WITHOUT_CUDA = "https://download.pytorch.org/whl/cpu"  # a tenth of the size with CUDA
OLDEST = (7, 0)  # compute capability that torch 2.8.0 is built for, with CUDA 12.8
CURE = "docs/deployment.md has other ways; SWITCHYARD_DEVICE=cpu runs without the GPU"
PIP = """
import sys
try:
    import runpy
    runpy.run_module("pip", run_name="__main__", alter_sys=True)
except KeyboardInterrupt:  # while pip is imported; later, pip handles it itself
    sys.exit(130)
"""
PROBE = """
import torch
if torch.version.cuda is None:
    raise ImportError(f"torch {torch.__version__} is built without CUDA")
import exllamav2_ext
"""


def choose(installed: str) -> str:
    """`installed`: the list that was installed last, or empty."""
    if installed in (read(COMPILED), read(EXL3)):  # an owner's choice
        return installed
    device = setting("device")
    found = gpus.gpus() if device != "cpu" and gpus.has_gpu() else []
    if not found and device != "cuda":  # set without a driver to build an image
        keeps = installed in (read(CUDA), without_flash_attn(read(CUDA)))
        return installed if keeps else read(USUAL)
    chosen = read(CUDA)
    check_platform(chosen)
    remark = f"installing {CUDA}, over 4 GB"
    if found:
        best = max(found, key=lambda gpu: gpu.capability)
        check_gpu(best)
        if best.capability < gpus.AMPERE:
            chosen = without_flash_attn(chosen)
            remark += (
                f", without flash-attn: it needs compute capability {dotted(gpus.AMPERE)}, but"
                f" this is {dotted(best.capability)}. Only one job runs at a time"
            )
        remark = f"there is a GPU, {best.name}: {remark}"
    if chosen != installed:
        tell(remark)
    return chosen


def check_platform(listed: str) -> None:
    pythons = re.findall(r'python_version == "([\d.]+)"', listed)
    this = dotted(sys.version_info[:2])
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        fail(f"{CUDA} is for Linux on x86-64, not {sys.platform} on {platform.machine()}: {CURE}")
    if this not in pythons:
        fail(
            f"{CUDA} has wheels for Python {pythons[0]} to {pythons[-1]}, but this is {this}:"
            f" install one of these versions, and remove .venv; {CURE}"
        )


def check_gpu(gpu: gpus.Gpu) -> None:
    if gpu.driver_major < gpus.NEEDED_DRIVER:
        fail(
            f"the driver of {gpu.name}, {gpu.driver}, is too old for CUDA 12: install"
            f" {gpus.NEEDED_DRIVER} or newer; {CURE}"
        )
    if gpu.capability < OLDEST:
        fail(
            f"{gpu.name} has compute capability {dotted(gpu.capability)}, but torch's build for"
            f" CUDA 12.8 begins at {dotted(OLDEST)}; {CURE}"
        )


def install(listed: str, name: str) -> None:
    options = [] if sys.stderr.isatty() else ["--quiet"]
    lines = listed.splitlines()
    is_cuda = " @ " in listed
    if is_cuda:
        options += ["--only-binary", ":all:"]
        lines = [by_name(line) for line in lines] if has_index() else lines
    elif name == USUAL and not has_index():
        tell(f"installing {name}, about a gigabyte; this takes a few minutes")
    else:
        tell(f"installing {name}")
    if name == USUAL and not is_cuda and not has_index():
        options += ["--extra-index-url", TORCH_WITHOUT_CUDA]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(lines))
        file.flush()
        # compiled on first import; most modules never are, and this halves the time to install
        if pip("install", *options, "--no-compile", "-r", file.name, stdout=sys.stderr).returncode:
            fail(f"pip could not install {CUDA if is_cuda else name}; see above", status=1)
    if is_cuda:
        probe = PROBE + ("import flash_attn" if "\nflash-attn " in listed else "")
        done = run("-c", probe, capture_output=True)
        if done.returncode:
            cause = done.stderr.splitlines()[-1]
            fail(f"{CUDA} is installed, but does not work: {cause}. Remove .venv to try again")


@functools.cache
def has_index() -> bool:
    """Whether pip is configured with another index or a directory of wheels, to be used here."""
    told = pip("config", "list", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return bool(re.search(r"(index-url|find-links|no-index)=", told))


def by_name(line: str) -> str:
    """Replaces a wheel's address with its name and version, if the configured index has it."""
    name, is_wheel, rest = line.partition(" @ ")
    address, _, marker = rest.partition(" ; ")
    if not is_wheel or f'"{dotted(sys.version_info[:2])}"' not in marker:
        return line
    version = address.rpartition("/")[2].split("-")[1].lower()
    known = pip("index", "versions", name, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return f"{name}=={version}" if version in re.split(r"[\s,()]+", known) else line


def pip(*arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
    return run("-c", PIP, "--disable-pip-version-check", *arguments, **options)


def run(*arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
    """Runs Python. On Ctrl-C, that process cleans up first, then this process ends."""
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    done = subprocess.run([sys.executable, *arguments], text=True, **options)
    if interrupts:
        sys.exit(130)
    return done


def read(name: str) -> str:
    return (ROOT / name).read_text()


def without_flash_attn(listed: str) -> str:
    return "".join(
        line for line in listed.splitlines(keepends=True) if not line.startswith("flash-attn")
    )


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def tell(message: str) -> None:
    print(f"switchyard: {message}", file=sys.stderr)


if __name__ == "__main__":
    task, path, *name = sys.argv[1:]
    if task == "choose":
        stamp = pathlib.Path(path)
        print(choose(stamp.read_text() if stamp.exists() else ""), end="")
    else:
        install(pathlib.Path(path).read_text(), *name)
