"""Classifies torch's exceptions according to whether the process can continue."""

import torch

from switchyard.engine.errors import DeviceLost, OutOfMemory

# After these errors, every later call to the device fails until the process ends (CUDA Runtime API,
# cudaError_t). An error that is missing here is noticed when no recovery helps.
_STICKY = (
    "an illegal memory access was encountered",
    "an illegal instruction was encountered",
    "device-side assert triggered",
    "hardware stack error",
    "invalid program counter",
    "misaligned address",
    "operation not supported on global/shared address space",
    "the launch timed out and was terminated",
    "uncorrectable ECC error encountered",
    "uncorrectable NVLink error detected",
    "unspecified launch failure",
)
_NO_MEMORY = ("CUDA error: out of memory", "DefaultCPUAllocator: can't allocate memory")


def explain(error: BaseException) -> BaseException:
    """Returns OutOfMemory or DeviceLost if `error` amounts to one of these, otherwise `error`
    itself.
    """
    message = str(error)
    summary = f"{type(error).__name__}: {message.partition(chr(10))[0]}"
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return OutOfMemory(summary)
    if any(part in message for part in _NO_MEMORY):
        return OutOfMemory(summary)
    if "CUDA error" in message and any(part in message for part in _STICKY):
        return DeviceLost(f"the device is lost until the process restarts: {summary}")
    return error
