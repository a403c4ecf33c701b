"""EXL3 models: exllamav3 computes them; exllamav2's generator schedules the work, as for EXL2.

`install()` comes first, as for the CPU: the generator is Python, and needs four small functions of
exllamav2's compiled extension, which an installation for EXL3 may lack.
"""

import importlib
import importlib.metadata
import importlib.util
import os
import sys
from typing import Any

from switchyard.engine.errors import ModelError

EXLLAMAV3_VERSION = "1.6.5"  # its insides are part of what runs here
EXTENSION = "exllamav3_ext"
INSTALL = "docs/models.md says how to install it"


def install() -> None:
    """Make `import exllamav3`, and exllamav2's generator, work without compiling anything.
    Idempotent. Raises ModelError.
    """
    check_installed()
    # The graphs of single layers can't be part of our graphs of a whole step. Read at import.
    os.environ.setdefault("EXL3_GRAPHS", "0")
    if "exllamav2_ext" not in sys.modules and importlib.util.find_spec("exllamav2_ext") is None:
        stand_in = importlib.import_module("switchyard.engine.backends.exl2.cpu.extension")
        sys.modules["exllamav2_ext"] = stand_in
    attention: Any = importlib.import_module("exllamav2.attn")
    attention.has_flash_attn_with_paged = True  # exllamav3 has its own


def check_installed() -> None:
    """Raises ModelError if exllamav3, or what it has compiled, is missing: importing it would then
    compile for many minutes.
    """
    try:
        version = importlib.metadata.version("exllamav3")
    except importlib.metadata.PackageNotFoundError:
        raise ModelError(f"EXL3 needs exllamav3 {EXLLAMAV3_VERSION}: {INSTALL}") from None
    if version.partition("+")[0] != EXLLAMAV3_VERSION:
        raise ModelError(f"EXL3 needs exllamav3 {EXLLAMAV3_VERSION}, not {version}: {INSTALL}")
    if EXTENSION not in sys.modules and importlib.util.find_spec(EXTENSION) is None:
        raise ModelError(
            f"exllamav3 {version} has no compiled extension, and compiling it takes many minutes:"
            f" install a wheel that has it; {INSTALL}"
        )
    if "triton" not in sys.modules and importlib.util.find_spec("triton") is None:
        raise ModelError(f"EXL3 needs Triton, which comes with torch for CUDA: {INSTALL}")
