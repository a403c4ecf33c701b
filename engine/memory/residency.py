"""Chooses which models to evict for another model. Does no I/O, except in `free` and in `needed`,
which looks up the free memory of the GPUs.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from switchyard.engine.config import PAGE_SIZE, CacheMode, ModelConfig
from switchyard.engine.errors import NoRoom
from switchyard.engine.memory import gpus, host
from switchyard.engine.memory.estimate import CONTEXT, GIB, Memory
from switchyard.engine.memory.process import give_memory_back
from switchyard.engine.model.footprint import measure
from switchyard.engine.model.loadable import check_loadable
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.shape import read_shape

# The number of a GPU that this process sees, in PCI order; or the host's memory.
Place = int | Literal["host"]

LIBRARIES = 300 * 2**20  # bytes of a process with torch, before a load


@dataclass(frozen=True, slots=True)
class Resident:
    """A loaded model."""

    name: str
    taken: Mapping[Place, int]  # bytes, as estimated by `needed` at its load
    used: float  # last use, on the monotonic clock; for a busy model, the time of its load
    is_busy: bool = False


@dataclass(frozen=True, slots=True)
class HostNeed:
    """The bytes of host memory that a model on the CPU takes."""

    weights: int
    token: int  # a token of the cache
    beside: int

    def total(self, tokens: int) -> int:
        return self.weights + self.token * tokens + self.beside


def fits(needed: Mapping[Place, int], free: Mapping[Place, int]) -> bool:
    return all(size <= free.get(place, 0) for place, size in needed.items())


def victims(
    needed: Mapping[Place, int],
    free: Mapping[Place, int],
    loaded: Sequence[Resident],
    excess: int = 0,
) -> list[str] | None:
    """The models in `loaded` to evict so that `needed` fits and at least `excess` models are
    unloaded. Idle models come first, and among these the least recently used. The list is minimal.
    Returns None if evicting all of `loaded` would not suffice.
    """

    def suffices(gone: Sequence[Resident]) -> bool:
        room = {
            place: free.get(place, 0) + sum(one.taken.get(place, 0) for one in gone)
            for place in needed
        }
        return len(gone) >= excess and fits(needed, room)

    gone = sorted(loaded, key=lambda one: (one.is_busy, one.used))
    if not suffices(gone):
        return None
    for one in reversed(gone):
        rest = [other for other in gone if other is not one]
        if suffices(rest):
            gone = rest
    return [one.name for one in gone]


def free(places: Collection[Place]) -> dict[Place, int]:
    """The free bytes of each place that exists."""
    found: dict[Place, int] = {i: gpu.free for i, gpu in enumerate(gpus.visible())}
    if "host" in places:
        found["host"] = host.free_memory()
    return {place: size for place, size in found.items() if place in places}


def needed(config: ModelConfig) -> dict[Place, int]:
    """The bytes that a model will take in each place, including the loader's reserve on GPUs. An
    `auto` cache counts as one context, which is its minimum. The result is empty for a shared
    engine. Raises ModelError.
    """
    if config.at:
        return {}
    if gpus.is_for_cpu(config.device):
        check_loadable(config)
        own = LIBRARIES if config.link == "process" or config.replicas > 1 else 0
        return {"host": config.replicas * (host_need(config).total(_tokens(config)) + own)}
    parts = [replace(config, gpus=part, replicas=1) for part in gpus.shares(config)]
    return {place: size for part in parts for place, size in _of_gpus(part).items()}


def check_host(config: ModelConfig, taken: int = 0) -> None:
    """Raises NoRoom, with the figures, for a model that the host's memory can't hold. `taken`: the
    free bytes that other models will take.
    """
    need, tokens = host_need(config), _tokens(config)
    left = max(host.free_memory() - taken, 0)
    if need.total(tokens) > left:
        give_memory_back()  # freed by an earlier model
        left = max(host.free_memory() - taken, 0)
    if need.total(tokens) <= left:
        return
    most = (left - need.weights - need.beside) // need.token // PAGE_SIZE * PAGE_SIZE
    raise NoRoom(
        f"no room for the model: {need.weights / GIB:.1f} GiB of weights in float32,"
        f" {need.token * tokens / GIB:.1f} GiB of cache ({tokens} tokens) and"
        f" {need.beside / GIB:.1f} GiB for the rest; {left / GIB:.1f} GiB of the host's memory are"
        " free. " + (f"What would fit: cache_tokens {most}" if most > 0 else "No cache would fit"),
        "cache_tokens",
    )


def _tokens(config: ModelConfig) -> int:
    """The number of tokens in the cache. The CPU backend refuses `auto` later."""
    return PAGE_SIZE if config.cache_tokens == "auto" else config.cache_tokens


def host_need(config: ModelConfig) -> HostNeed:
    """The memory that the CPU backend needs, with everything in float32. The output head is a
    separate matrix, even if it is tied to the embedding.
    """
    footprints, found = measure(config)
    weights = token = beside = 0
    paths = [path for path in (config.draft_model, config.path) if path is not None]
    for path, footprint in zip(paths, footprints, strict=True):
        shape = read_shape(ModelDir.read(path).config)
        head = 4 * shape.vocab_size * shape.hidden_size
        weights += 2 * footprint.weights + head
        own_token = 2 * footprint.cache("float16", 1)
        token += own_token
        rotations = 4 * found.max_seq_len * shape.head_dim
        copies = own_token // shape.num_layers * found.max_seq_len
        widths = 4 * shape.hidden_size + 3 * shape.inner_size
        activations = 4 * found.max_input_len * widths
        logits = 4 * config.max_batch_size * shape.vocab_size
        beside += rotations + copies + activations + 2 * logits
    return HostNeed(weights, token, beside)


def _of_gpus(config: ModelConfig) -> dict[Place, int]:
    """The bytes on each GPU if there is room now; otherwise, the bytes as if the GPUs were empty.
    The result is empty if NVML does not report the GPUs.
    """
    footprints, found = measure(config)
    there = gpus.chosen(config)
    if not there:
        return {}
    now, alone = (
        Memory(config, footprints, [max(size - CONTEXT, 0) for size in sizes], found.max_seq_len)
        for sizes in ([gpu.free for gpu in there.values()], [gpu.total for gpu in there.values()])
    )
    used = _least(config, now, config.cache_mode, found.max_seq_len) or _least(
        config, alone, config.cache_mode[::-1], found.max_seq_len
    )
    if not used:
        now.caches()  # raises NoRoom, based on the free memory
    reserve = int(config.gpu_reserve * GIB)
    return {
        place: CONTEXT + (size + reserve if size else 0)
        for place, size in zip(there, used, strict=False)
    }


def _least(
    config: ModelConfig, memory: Memory, modes: Sequence[CacheMode], context: int
) -> list[int]:
    """The bytes on each GPU with the first of the modes that fits, or empty if none fits."""
    for mode in modes:
        asked = config.cache_tokens
        tokens = min(context, memory.largest(mode)) if asked == "auto" else asked
        if tokens and (used := memory.place(mode, tokens)):
            return used
    return []
