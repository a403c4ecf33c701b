"""Replaces exllamav2's compiled extension and CUDA model on a machine without a GPU. `install()`
must be called first, because exllamav2/ext.py tries to import a module `exllamav2_ext` before it
compiles its extension, and must find ours. The other modules of this package import exllamav2, so
import them after `install()`.
"""

import contextlib
import importlib
import importlib.metadata
import io
import os
import sys
import threading
from typing import Any

from switchyard.engine.errors import ModelError

EXLLAMAV2_VERSION = "0.3.2"


class _Without(io.TextIOBase):
    """stdout without the output of one thread. Hides the warning that exllamav2 prints on import
    when torch has no CUDA.
    """

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._out = sys.stdout

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self._thread else self._out.write(text)

    def flush(self) -> None:
        self._out.flush()


def install() -> None:
    """Make `import exllamav2` work without a GPU. Idempotent. Raises ModelError."""
    extension_name = f"{__name__}.extension"
    installed = sys.modules.get("exllamav2_ext")
    if installed is not None and installed is sys.modules.get(extension_name):
        return
    if installed is not None or "exllamav2" in sys.modules:
        raise ModelError("exllamav2 is already imported: call install() of the CPU backend first")
    version = importlib.metadata.version("exllamav2")
    if version != EXLLAMAV2_VERSION:
        raise ModelError(
            f"the CPU backend needs exllamav2 {EXLLAMAV2_VERSION}, not {version}: "
            f"pip install exllamav2=={EXLLAMAV2_VERSION}"
        )
    import torch

    if torch.cuda.is_available():
        raise ModelError(
            "this machine has a CUDA device: hide it with CUDA_VISIBLE_DEVICES= to use the CPU"
        )
    # Otherwise exllamav2 imports torch's compiler, which takes half of the start-up time, for
    # attention variants that only its own model uses.
    os.environ.setdefault("EXLLAMA_NO_SDPA", "1")
    sys.modules["exllamav2_ext"] = importlib.import_module(extension_name)
    with contextlib.redirect_stdout(_Without(threading.get_ident())):
        attention: Any = importlib.import_module("exllamav2.attn")
    # The generator requires flash-attn for its paged kernel; CpuLlama does the paging.
    attention.has_flash_attn_with_paged = True
