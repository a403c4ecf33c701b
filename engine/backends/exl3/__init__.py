"""EXL3 models: exllamav3 computes them, and exllamav2's generator schedules the work, as for EXL2.

`install()` must be called first, as for the CPU backend. The generator is written in Python, but
needs four small functions from exllamav2's compiled extension, which an installation for EXL3 may
lack.
"""

import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import re
import sys
from typing import Any

from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import ModelError
from switchyard.engine.memory.gpus import AMPERE, chosen

EXLLAMAV3_VERSION = "1.6.5"  # this backend depends on its internals
EXTENSION = "exllamav3_ext"
WHEEL = "exllamav3-1.6.5+cu132.torch2.11.0"  # in requirements-exl3.txt; includes torch's version
INSTALL = "docs/models.md says how to install it"


def install() -> None:
    """Make `import exllamav3`, and exllamav2's generator, work without compiling anything.
    Idempotent. Raises ModelError.
    """
    check_installed()
    # exllamav3's graphs of single layers can't be part of our graphs of a whole step. It reads the
    # variable at import.
    os.environ.setdefault("EXL3_GRAPHS", "0")
    importlib.import_module("torch")  # the extension finds torch's libraries in this process
    try:
        importlib.import_module(EXTENSION)
    except ImportError as error:
        check_import(str(error))
    if "exllamav2_ext" not in sys.modules and importlib.util.find_spec("exllamav2_ext") is None:
        stand_in = importlib.import_module("switchyard.engine.backends.exl2.cpu.extension")
        sys.modules["exllamav2_ext"] = stand_in
    attention: Any = importlib.import_module("exllamav2.attn")
    attention.has_flash_attn_with_paged = True  # exllamav3 has its own paged attention


def check_machine(config: ModelConfig) -> None:
    """Raises ModelError if a package that EXL3 models need is missing or unsuitable, or if a
    chosen GPU is too old for them.
    """
    check_installed()
    for number, gpu in chosen(config).items():
        check_capability(number, gpu.name, gpu.capability)


def check_capability(number: int, name: str, capability: tuple[int, int]) -> None:
    """Raises ModelError for a GPU that exllamav3's kernels don't run on."""
    if (0, 0) < capability < AMPERE:  # (0, 0): unknown
        found = ".".join(map(str, capability))
        raise ModelError(
            f"EXL3 needs GPUs of compute capability 8.0 or above, but GPU {number}, {name}, has"
            f" {found}: choose other GPUs in `gpus`",
            "gpus",
        )


def check_installed() -> None:
    """Raises ModelError if exllamav3, its compiled extension or Triton is missing or has an
    unsuitable version. Without the extension, importing exllamav3 would spend many minutes
    compiling it. Imports nothing.
    """
    try:
        version = importlib.metadata.version("exllamav3")
    except importlib.metadata.PackageNotFoundError:
        raise ModelError(f"EXL3 needs exllamav3 {EXLLAMAV3_VERSION}: {INSTALL}") from None
    if version.partition("+")[0] != EXLLAMAV3_VERSION:
        raise ModelError(f"EXL3 needs exllamav3 {EXLLAMAV3_VERSION}, not {version}: {INSTALL}")
    if EXTENSION not in sys.modules and not _is_compiled():
        raise ModelError(
            f"exllamav3 {version} has no compiled extension, and compiling one takes many"
            f" minutes: install a wheel that contains it; {INSTALL}"
        )
    built, torch = re.search(r"torch([\d.]+)", version), importlib.metadata.version("torch")
    if built and not f"{torch.partition('+')[0]}.".startswith(f"{built[1]}."):
        raise ModelError(f"exllamav3 {version} was not built for torch {torch}: {_cure()}")
    if "triton" not in sys.modules and importlib.util.find_spec("triton") is None:
        raise ModelError(f"EXL3 needs Triton, which comes with torch for CUDA: {INSTALL}")


def check_import(found: str | bool) -> None:
    """Raises ModelError if exllamav3's compiled extension can't be imported."""
    if found is not True:
        error = " ".join(str(found).split())
        raise ModelError(f"exllamav3's compiled extension can't be loaded ({error}): {_cure()}")


def _is_compiled() -> bool:
    """Whether exllamav3 will import its extension instead of compiling it, according to exllamav3's
    own rule.
    """
    spec = importlib.util.find_spec(EXTENSION)
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    return spec is not None and bool(spec.origin) and str(spec.origin).endswith(suffixes)


def _cure() -> str:
    torch = WHEEL.rpartition("torch")[2]
    return f"install torch {torch} and the wheel {WHEEL} together; {INSTALL}"
