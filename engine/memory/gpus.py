"""Which GPUs are there? Without torch, whose import takes seconds."""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

NEEDED_DRIVER = 525  # of CUDA 12, whatever its minor version
AMPERE = (8, 0)  # flash-attn's oldest

NAME = 96  # bytes that any of its texts may have


@dataclass(frozen=True, slots=True)
class Gpu:
    """As NVIDIA's management library (NVML) tells it. Memory in bytes."""

    name: str
    capability: tuple[int, int]
    total: int
    free: int
    driver: str

    @property
    def driver_major(self) -> int:
        return int(self.driver.partition(".")[0] or 0)


class _Memory(ctypes.Structure):
    """nvmlMemory_t"""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def has_gpu() -> bool:
    """Asked of NVML: once CUDA itself has been asked, no fork of this process could use it any
    more.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    with _nvml() as (_, number):
        return number > 0


def is_for_cpu(device: str) -> bool:
    """Whether a model with this setting is served without a GPU, as far as NVML tells."""
    return device == "cpu" or (device == "auto" and not has_gpu())


def gpus() -> list[Gpu]:
    """All that the driver knows; none where there is no driver."""
    with _nvml() as (nvml, number):
        return [_gpu(nvml, i) for i in range(number)]


@contextlib.contextmanager
def _nvml() -> Iterator[tuple[Any, int]]:
    """The library, and how many GPUs it knows."""
    number = ctypes.c_uint()
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        yield None, 0
        return
    if nvml.nvmlInit_v2():
        yield None, 0
        return
    try:
        failed = nvml.nvmlDeviceGetCount_v2(ctypes.byref(number))
        yield nvml, 0 if failed else number.value
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> Gpu:
    """What a call that fails would tell is empty."""
    device, memory = ctypes.c_void_p(), _Memory()
    major, minor = ctypes.c_int(), ctypes.c_int()
    name, driver = ctypes.create_string_buffer(NAME), ctypes.create_string_buffer(NAME)
    nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device))
    nvml.nvmlDeviceGetName(device, name, ctypes.c_uint(NAME))
    nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor))
    nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
    nvml.nvmlSystemGetDriverVersion(driver, ctypes.c_uint(NAME))
    capability = major.value, minor.value
    return Gpu(name.value.decode(), capability, memory.total, memory.free, driver.value.decode())
