"""Estimates the GPU memory of a model and its cache, and chooses a cache that fits. Does only
arithmetic, based on what ExLlamaV2 0.3.2 allocates.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from switchyard.engine.config import CACHE_BITS, PAGE_SIZE, CacheMode, ModelConfig, cache_bits
from switchyard.engine.errors import NoRoom

GIB = 2**30
CONTEXT = 5 * GIB // 8  # bytes that CUDA takes on each GPU before any load; 621 MiB on an H200
MODES = tuple(CACHE_BITS)  # the largest first
MAX_QUANTIZED = 2**31  # numbers in a layer, beyond which the kernels' positions overflow


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory of one model, in bytes unless noted."""

    modules: tuple[tuple[int, bool], ...]  # in order: size of the weights, whether there is a cache
    fixed: int  # on each GPU in use: work space, rotary embeddings, activations
    num_kv_heads: int
    head_dim: int
    unpacked: tuple[int, ...] = ()  # of float16 copies of the modules' weights, where possible
    unpacked_fixed: int = 0  # work space with such copies
    products: int = 0  # work space of our own products
    is_whole: bool = False  # all of it must be on one GPU

    @property
    def kv_size(self) -> int:
        """The number of values in one token's keys in one layer."""
        return self.num_kv_heads * self.head_dim

    @property
    def weights(self) -> int:
        return sum(size for size, _ in self.modules)

    def layer_cache(self, mode: CacheMode, tokens: int) -> int:
        # A two-byte scale for every 32 numbers of a head or, in ExLlamaV3, of all heads.
        heads = self.num_kv_heads * (self.head_dim // 32)
        groups = self.kv_size // 32 if self.is_whole else heads
        scales = 0 if mode == "float16" else 2 * 2 * groups
        return tokens * self.kv_size * sum(cache_bits(mode)) // 8 + tokens * scales

    def cache(self, mode: CacheMode, tokens: int) -> int:
        """The bytes of the cache, for all layers together."""
        num_layers = sum(is_cached for _, is_cached in self.modules)
        return num_layers * self.layer_cache(mode, tokens)

    def beside(self, mode: CacheMode, tokens: int) -> int:
        """The bytes in use on each GPU besides weights and cache, including a float16 copy of one
        layer's cache if the cache is quantized.
        """
        return self.fixed + self.products + (0 if mode == "float16" else tokens * self.kv_size * 4)

    def whole(self, mode: CacheMode, tokens: int) -> int:
        """The bytes that weights, cache and everything else take on one GPU."""
        return self.weights + self.cache(mode, tokens) + self.beside(mode, tokens)


class Memory:
    """The GPUs' memory, for a model and its draft model, if any."""

    def __init__(
        self,
        config: ModelConfig,
        footprints: Sequence[Footprint],
        free: Sequence[int],
        context: int,
    ) -> None:
        """`footprints`: in the order of loading, with the main model's last. `free`: the free bytes
        of each GPU. `context`: the number of tokens in one full sequence.
        """
        self._config = config
        self._footprints = footprints
        self._free = free
        self._room = [max(size - int(config.gpu_reserve * GIB), 0) for size in free]
        self._context = context

    def caches(self) -> list[tuple[CacheMode, int]]:
        """The allowed caches that fit, as modes and tokens, best first. If no cache fits, raises
        NoRoom, which suggests caches that would fit.
        """
        tokens = self._config.cache_tokens
        if tokens == "auto":
            largest = [(mode, self.largest(mode)) for mode in self._config.cache_mode]
            whole = [cache for cache in largest if cache[1] >= self._context]
            # No cache holds a full context: take the largest.
            found = whole or [max(largest, key=lambda cache: cache[1])]
            found = [cache for cache in found if cache[1]]
        else:
            found = [(m, tokens) for m in self._config.cache_mode if self.place(m, tokens)]
        if not found:
            raise NoRoom(self._refusal(), "cache_tokens")
        return found

    def place(self, mode: CacheMode, tokens: int) -> list[int]:
        """The bytes used on each GPU, or an empty list if the GPUs lack room."""
        used = [0] * len(self._room)
        for i, footprint in enumerate(self._footprints):
            if mode != "float16" and tokens * footprint.kv_size >= MAX_QUANTIZED:
                return []
            if footprint.is_whole:
                size = footprint.whole(mode, tokens)
                gpu = next((gpu for gpu, room in enumerate(self._room) if size <= room), None)
                return [] if gpu is None else [size * (gpu == n) for n in range(len(used))]
            if self._config.tensor_parallel:
                self._spread(used, footprint, mode, tokens)
                continue
            is_main = i == len(self._footprints) - 1
            if not self._fill(used, footprint, mode, tokens, self._config.gpu_split * is_main):
                return []
        fits = all(size <= room for size, room in zip(used, self._room, strict=True))
        return used if fits else []

    def unpacked(self, mode: CacheMode, tokens: int) -> list[int]:
        """The bytes of each float16 copy for which there is room next to this cache, in the order
        of the modules that can have a copy. The result is empty unless one GPU holds everything.
        """
        config, most = self._config, self._config.unpacked_weights
        used = self.place(mode, tokens)
        if most == "off" or sum(map(bool, used)) != 1:
            return []
        if config.has_draft or config.loras or config.tensor_parallel:
            return []
        [footprint] = self._footprints
        gpu = next(i for i, size in enumerate(used) if size)
        left = self._room[gpu] - used[gpu] - footprint.unpacked_fixed
        if most != "auto":
            left = min(left, int(most * GIB))
        sizes = [size for size in footprint.unpacked if size]
        sums = itertools.accumulate(sizes)
        return sizes[: sum(size <= left for size in sums)]

    def _fill(
        self,
        used: list[int],
        footprint: Footprint,
        mode: CacheMode,
        tokens: int,
        split: Sequence[float],
    ) -> bool:
        """Fill one GPU after another, as ExLlamaV2 does. Without a split, all memory counts; with a
        split, only weights and work space count.
        """
        gpu, weights_here = 0, 0
        layer_cache = footprint.layer_cache(mode, tokens)
        for weights, is_cached in footprint.modules:
            size = weights + layer_cache * is_cached
            while gpu < len(used):
                beside = 0 if weights_here else footprint.beside(mode, tokens)
                if split:
                    limit = split[gpu] * GIB if gpu < len(split) else 0
                    fits = weights_here + weights + footprint.fixed <= limit
                else:
                    fits = used[gpu] + size + beside <= self._room[gpu]
                if fits:
                    break
                gpu, weights_here = gpu + 1, 0
            else:
                return False
            weights_here += weights
            used[gpu] += size + beside
        return True

    def _spread(self, used: list[int], footprint: Footprint, mode: CacheMode, tokens: int) -> None:
        """Put a part of each layer on each GPU, as ExLlamaV2 does. Whole key/value heads are
        divided in proportion to the free memory, and the rest in proportion to the memory that is
        then left.
        """
        split = [int(size * GIB) for size in self._config.gpu_split] or self._room
        rooms = [*split, *[0] * len(used)][: len(used)]
        heads = _whole_parts(footprint.num_kv_heads, rooms)
        attention = sum(weights for weights, is_cached in footprint.modules if is_cached)
        of_heads = attention + footprint.cache(mode, tokens)
        taken = [of_heads * part // footprint.num_kv_heads for part in heads]
        left = [max(room - size, 0) for room, size in zip(rooms, taken, strict=True)]
        others = _whole_parts(footprint.weights - attention, left)
        for i, size in enumerate(map(sum, zip(taken, others, strict=True))):
            used[i] += size + footprint.beside(mode, tokens) if size else 0

    def largest(self, mode: CacheMode) -> int:
        """The maximum number of tokens that fit and that a full batch could use, or 0 if there is
        no room.
        """
        most = self._config.max_batch_size * -(-self._context // PAGE_SIZE)
        fewest = 0
        while fewest < most:  # binary search over pages
            middle = (fewest + most + 1) // 2
            if self.place(mode, middle * PAGE_SIZE):
                fewest = middle
            else:
                most = middle - 1
        return fewest * PAGE_SIZE

    def _refusal(self) -> str:
        mode, asked = self._config.cache_mode[-1], self._config.cache_tokens
        tokens = PAGE_SIZE if asked == "auto" else asked
        weights = sum(footprint.weights for footprint in self._footprints)
        cache = sum(footprint.cache(mode, tokens) for footprint in self._footprints)
        beside = sum(footprint.beside(mode, tokens) for footprint in self._footprints)
        free = " + ".join(f"{size / GIB:.1f}" for size in self._free)
        would = [
            f"cache_mode {other} with cache_tokens {min(largest, tokens)}"
            for other in MODES
            if (largest := self.largest(other))
        ]
        is_whole = len(self._free) > 1 and any(one.is_whole for one in self._footprints)
        where = ", and one must hold all of an EXL3 model" if is_whole else ""
        return (
            f"no room for the model: {weights / GIB:.1f} GiB of weights, {cache / GIB:.1f} GiB of"
            f" cache ({mode}, {tokens} tokens) and {beside / GIB:.1f} GiB for the rest; {free} GiB"
            f" of the GPUs are free{where}, less a gpu_reserve of {self._config.gpu_reserve}. "
            + (f"What would fit: {', or '.join(would)}" if would else "No cache would fit")
        )


def _whole_parts(total: int, sizes: Sequence[int]) -> list[int]:
    """Returns whole numbers in the ratio of the sizes. The remainder goes to the largest
    fractions.
    """
    sizes = sizes if any(sizes) else [1] * len(sizes)
    parts = [total * size // sum(sizes) for size in sizes]
    lacking = sorted(range(len(sizes)), key=lambda i: -(total * sizes[i] % sum(sizes)))
    for i in lacking[: total - sum(parts)]:
        parts[i] += 1
    return parts
