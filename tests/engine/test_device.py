"""What the libraries say of a device: its errors, and its memory."""

from types import SimpleNamespace

import pytest
import torch

from switchyard.engine.backends.exl.faults import explain
from switchyard.engine.backends.exl.loaded import LoadedModel
from switchyard.engine.backends.exl.occupancy import occupancy
from switchyard.engine.errors import DeviceLost, OutOfMemory
from switchyard.engine.stats import DeviceMemory, Occupancy
from tests.scripted import job


@pytest.mark.parametrize(
    "words",  # of cudaGetErrorString
    [
        "an illegal memory access was encountered",
        "an illegal instruction was encountered",
        "device-side assert triggered",
        "hardware stack error",
        "invalid program counter",
        "misaligned address",
        "operation not supported on global/shared address space",
        "the launch timed out and was terminated",
        "uncorrectable ECC error encountered",
        "uncorrectable NVLink error detected during the execution",
        "unspecified launch failure",
    ],
)
def test_an_error_that_all_later_calls_would_repeat_loses_the_device(words):
    error = explain(RuntimeError(f"CUDA error: {words}\nCUDA kernel errors might be reported"))
    assert isinstance(error, DeviceLost)
    assert str(error).endswith(f"RuntimeError: CUDA error: {words}")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nGPU 0 has"),
        MemoryError("none left"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported"),
        RuntimeError("[enforce fail at alloc.cpp] DefaultCPUAllocator: can't allocate memory: you"),
    ],
    ids=repr,
)
def test_want_of_memory_is_told_in_one_line(error):
    told = explain(error)
    assert isinstance(told, OutOfMemory)
    assert str(told) == f"{type(error).__name__}: {str(error).splitlines()[0]}"


@pytest.mark.parametrize(
    "error", [RuntimeError("CUDA error: invalid argument"), ValueError("misaligned address")]
)
def test_any_other_error_is_what_it_is(error):
    assert explain(error) is error


def test_a_step_that_never_finds_memory_is_told_as_such(opened):
    """So that fewer jobs run next."""

    def before(input_ids, is_prefill):
        if failing:
            raise torch.OutOfMemoryError("CUDA out of memory")

    failing = []
    backend = opened(logits=lambda t: {7: 0.0}, before=before)
    backend.enqueue(job("a", 9))
    backend.iterate()
    failing.append(True)
    assert backend.iterate() == backend.iterate() == []
    with pytest.raises(OutOfMemory):
        backend.iterate()


def test_each_gpu_that_holds_memory_of_ours_is_told(backend, monkeypatch):
    of_gpus = [(1, 2, 3, 4), (0, 0, 30, 40), (100, 200, 300, 400)]
    cuda = {
        "is_initialized": lambda: True,
        "device_count": lambda: len(of_gpus),
        "get_device_name": lambda i: f"GPU {i}",
        "memory_allocated": lambda i: of_gpus[i][0],
        "memory_reserved": lambda i: of_gpus[i][1],
        "mem_get_info": lambda i: of_gpus[i][2:],
    }
    for name, function in cuda.items():
        monkeypatch.setattr(torch.cuda, name, function)
    assert backend.occupancy() == Occupancy(
        memory=(
            DeviceMemory("0: GPU 0", allocated=1, reserved=2, free=3, total=4),
            DeviceMemory("2: GPU 2", allocated=100, reserved=200, free=300, total=400),
        )
    )


def test_no_gpu_is_asked_for_its_memory_before_it_is_in_use(backend, monkeypatch):
    """That alone would take some of it."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "memory_reserved", None)
    assert backend.occupancy() == Occupancy()


def test_pages_count_as_cached_once_they_are_full():
    free = {i: SimpleNamespace(kv_position=n) for i, n in enumerate((0, 1, 255, 256, 256))}
    generator = SimpleNamespace(
        page_size=256,
        unreferenced_pages=free,
        referenced_pages={"a": None, "b": None, "c": None},
        parked=[],
    )
    found = occupancy(generator, LoadedModel(None, None, "float16"))
    assert (found.referenced_pages, found.cached_pages) == (3, 2)
