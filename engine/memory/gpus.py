"""Lists the GPUs in this machine. Doesn't use torch, whose import takes seconds."""

import contextlib
import ctypes
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import ModelError

NEEDED_DRIVER = 525  # for CUDA 12, any minor version
AMPERE = (8, 0)  # the oldest that flash-attn supports

VISIBLE = "CUDA_VISIBLE_DEVICES"  # CUDA's variable: numbers or UUIDs
NAME = 96  # bytes of NVML's longest text


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, as NVIDIA's management library (NVML) reports it. Memory is in bytes."""

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
    """Whether there is a GPU. Asks NVML rather than CUDA, because after a call to CUDA no fork of
    this process could use CUDA.
    """
    if os.environ.get(VISIBLE) in ("", "-1"):
        return False
    with _nvml() as (_, number):
        return number > 0


def is_for_cpu(device: str) -> bool:
    """Whether a model with this `device` is served on the CPU, depending on the GPUs that NVML
    reports.
    """
    return device == "cpu" or (device == "auto" and not has_gpu())


def gpus() -> list[Gpu]:
    """All GPUs known to the driver, or an empty list without a driver."""
    with _nvml() as (nvml, number):
        return [_gpu(nvml, _device(nvml, i)) for i in range(number)]


def visible() -> list[Gpu]:
    """The GPUs that CUDA would give to this process, in the order of CUDA_VISIBLE_DEVICES or,
    without that variable, of the PCI bus. As in CUDA, the list ends at the first entry that doesn't
    name a GPU.
    """
    told = _told()
    if told is None:
        return gpus()
    found = []
    with _nvml() as (nvml, number):
        for identifier in told:
            device = _find(nvml, identifier, number)
            if device is None:
                break
            found.append(_gpu(nvml, device))
    return found


def check_gpus(config: ModelConfig) -> None:
    """Raises ModelError if one of the configuration's `gpus` does not exist according to NVML or,
    if NVML lists no GPUs, according to CUDA_VISIBLE_DEVICES.
    """
    if not config.gpus or config.at:  # a shared engine's GPUs can't be checked here
        return
    if is_for_cpu(config.device):
        raise ModelError("gpus needs GPUs, but NVML finds none", "gpus")
    told = _told()
    number = len(visible())
    if not gpus():  # NVML is hidden
        number = max(config.gpus) + 1 if told is None else len(told)
    for gpu in config.gpus:
        if gpu >= number:
            raise ModelError(
                f"gpus names {gpu}, but this process sees {number}, numbered from 0", "gpus"
            )


def shares(config: ModelConfig) -> list[tuple[int, ...]]:
    """The GPUs of each replica, in groups of equal size. An empty group means all GPUs. Raises
    ModelError.
    """
    if config.replicas == 1 or is_for_cpu(config.device):
        return [config.gpus] * config.replicas
    numbers = config.gpus or tuple(range(len(visible())))
    size, rest = divmod(len(numbers), config.replicas)
    if rest or not size:
        raise ModelError(
            f"{len(numbers)} GPUs can't be divided equally among {config.replicas} replicas",
            "replicas",
        )
    return [numbers[i * size : (i + 1) * size] for i in range(config.replicas)]


def chosen(config: ModelConfig) -> dict[int, Gpu]:
    """The GPUs that the model may use, by number."""
    there = dict(enumerate(visible()))
    return {i: there[i] for i in config.gpus if i in there} if config.gpus else there


def environment(numbers: Sequence[int]) -> dict[str, str]:
    """The environment variables for a process that may see only these GPUs, or all if the list is
    empty. The numbers are NVML's, in PCI order; CUDA's own order begins with the fastest GPU.
    """
    if not numbers:
        return {}
    told = _told()
    identifiers = [str(i) if told is None else told[i] for i in numbers]
    return {VISIBLE: ",".join(identifiers), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _told() -> list[str] | None:
    """The entries in CUDA_VISIBLE_DEVICES, or None if it is not set."""
    told = os.environ.get(VISIBLE)
    return None if told is None else [part.strip() for part in told.split(",") if part.strip()]


@contextlib.contextmanager
def _nvml() -> Iterator[tuple[Any, int]]:
    """Yields the library, and the number of GPUs that it lists."""
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


def _device(nvml: Any, index: int) -> ctypes.c_void_p:
    device = ctypes.c_void_p()
    nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device))
    return device


def _find(nvml: Any, identifier: str, number: int) -> ctypes.c_void_p | None:
    """Returns a GPU by its number, its UUID or the beginning of its UUID."""
    if not number:
        return None
    if identifier.isdecimal():
        return _device(nvml, int(identifier)) if int(identifier) < number else None
    device, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(NAME)
    if identifier.startswith("MIG-"):  # a part of a GPU
        failed = nvml.nvmlDeviceGetHandleByUUID(identifier.encode(), ctypes.byref(device))
        return None if failed else device
    for i in range(number) if identifier.startswith("GPU-") else ():
        nvml.nvmlDeviceGetUUID(_device(nvml, i), uuid, ctypes.c_uint(NAME))
        if uuid.value.decode().startswith(identifier):
            return _device(nvml, i)
    return None


def _gpu(nvml: Any, device: ctypes.c_void_p) -> Gpu:
    """Returns one GPU. If a call fails, the field that it would fill is empty."""
    memory = _Memory()
    major, minor = ctypes.c_int(), ctypes.c_int()
    name, driver = ctypes.create_string_buffer(NAME), ctypes.create_string_buffer(NAME)
    nvml.nvmlDeviceGetName(device, name, ctypes.c_uint(NAME))
    nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor))
    nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
    nvml.nvmlSystemGetDriverVersion(driver, ctypes.c_uint(NAME))
    capability = major.value, minor.value
    return Gpu(name.value.decode(), capability, memory.total, memory.free, driver.value.decode())
