"""Reads how many pages, and how much memory, are in use."""

from typing import Any

import torch

from switchyard.engine.backends.exl.loaded import LoadedModel
from switchyard.engine.stats import DeviceMemory, Occupancy


def occupancy(generator: Any, loaded: LoadedModel) -> Occupancy:
    """Returns the pages and the memory that a `PagingGenerator` for `loaded` holds."""
    free = generator.unreferenced_pages.values()
    return Occupancy(
        referenced_pages=len(generator.referenced_pages),
        cached_pages=sum(page.kv_position == generator.page_size for page in free),
        memory=_memory(),
        parked_jobs=len(generator.parked),
        kept=loaded.kept,
    )


def _memory() -> tuple[DeviceMemory, ...]:
    """The memory of the GPUs that this process uses, as torch reports it. `free` also excludes
    memory that other processes use.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return ()
    used = [i for i in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(i)]
    return tuple(_memory_of(i) for i in used)


def _memory_of(index: int) -> DeviceMemory:
    free, total = torch.cuda.mem_get_info(index)
    return DeviceMemory(
        f"{index}: {torch.cuda.get_device_name(index)}",
        torch.cuda.memory_allocated(index),
        torch.cuda.memory_reserved(index),
        free,
        total,
    )
