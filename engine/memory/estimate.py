"""How much memory of GPUs a model and its cache take, and which cache there is room for. Nothing
but arithmetic: what ExLlamaV2 0.3.2 allocates, in bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from switchyard.engine.config import PAGE_SIZE, CacheMode, ModelConfig
from switchyard.engine.errors import NoRoom

GIB = 2**30
CONTEXT = 5 * GIB // 8  # of a GPU, which CUDA takes before anything is loaded: 621 MiB of an H200
MODES: tuple[CacheMode, ...] = ("float16", "Q8", "Q6", "Q4")  # the largest first
BYTES: dict[CacheMode, float] = {"float16": 4, "Q8": 2, "Q6": 1.5, "Q4": 1}  # of a key and a value
MAX_QUANTIZED = 2**31  # numbers in a layer: beyond it, positions in the kernels overflow


@dataclass(frozen=True, slots=True)
class Footprint:
    """Of one model."""

    modules: tuple[tuple[int, bool], ...]  # in order: size of the weights, whether it has a cache
    fixed: int  # on each GPU that has a part: work space, rotary embeddings, activations
    num_kv_heads: int
    head_dim: int

    @property
    def kv_size(self) -> int:
        """Numbers in the keys of a token, in one layer."""
        return self.num_kv_heads * self.head_dim

    @property
    def weights(self) -> int:
        return sum(size for size, _ in self.modules)

    def layer_cache(self, mode: CacheMode, tokens: int) -> int:
        # A scale of two bytes for 32 numbers.
        scales = 0 if mode == "float16" else 2 * 2 * self.num_kv_heads * (self.head_dim // 32)
        return int(tokens * (self.kv_size * BYTES[mode] + scales))

    def cache(self, mode: CacheMode, tokens: int) -> int:
        """Of all layers."""
        num_layers = sum(is_cached for _, is_cached in self.modules)
        return num_layers * self.layer_cache(mode, tokens)

    def beside(self, mode: CacheMode, tokens: int) -> int:
        """On each GPU that has a part; with one layer's cache in float16, where it is quantized."""
        return self.fixed + (0 if mode == "float16" else tokens * self.kv_size * 4)


class Memory:
    """Of GPUs, for a model and perhaps its draft model."""

    def __init__(
        self,
        config: ModelConfig,
        footprints: Sequence[Footprint],
        free: Sequence[int],
        context: int,
    ) -> None:
        """`footprints` in the order of loading, the model's last; `free` bytes of each GPU;
        `context`: tokens of one whole sequence.
        """
        self._config = config
        self._footprints = footprints
        self._free = free
        self._room = [max(size - int(config.gpu_reserve * GIB), 0) for size in free]
        self._context = context

    def caches(self) -> list[tuple[CacheMode, int]]:
        """Mode and tokens of what the configuration allows and has room, the best first. Raises
        NoRoom, with what would fit, if that is none.
        """
        tokens = self._config.cache_tokens
        if tokens == "auto":
            largest = [(mode, self.largest(mode)) for mode in self._config.cache_mode]
            whole = [cache for cache in largest if cache[1] >= self._context]
            # None holds a whole context: then the one that comes closest.
            found = whole or [max(largest, key=lambda cache: cache[1])]
            found = [cache for cache in found if cache[1]]
        else:
            found = [(m, tokens) for m in self._config.cache_mode if self.place(m, tokens)]
        if not found:
            raise NoRoom(self._refusal(), "cache_tokens")
        return found

    def place(self, mode: CacheMode, tokens: int) -> list[int]:
        """Bytes on each GPU, or [] where there is no room for all."""
        used = [0] * len(self._room)
        for i, footprint in enumerate(self._footprints):
            if mode != "float16" and tokens * footprint.kv_size >= MAX_QUANTIZED:
                return []
            if self._config.tensor_parallel:
                self._spread(used, footprint, mode, tokens)
                continue
            is_main = i == len(self._footprints) - 1
            if not self._fill(used, footprint, mode, tokens, self._config.gpu_split * is_main):
                return []
        fits = all(size <= room for size, room in zip(used, self._room, strict=True))
        return used if fits else []

    def _fill(
        self,
        used: list[int],
        footprint: Footprint,
        mode: CacheMode,
        tokens: int,
        split: Sequence[float],
    ) -> bool:
        """One GPU after the other, as ExLlamaV2 does: by all that they take, or by weights
        and work space where a split is given.
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
        """A part of each layer on each GPU, as ExLlamaV2 shares them out: the key/value heads,
        which are whole, by the room that there is, and the rest by the room that they leave.
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
        """Tokens: no more than all places of the batch can use, 0 if there is no room at all."""
        most = self._config.max_batch_size * -(-self._context // PAGE_SIZE)
        fewest = 0
        while fewest < most:  # pages
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
        return (
            f"no room for the model: {weights / GIB:.1f} GiB of weights, {cache / GIB:.1f} GiB of"
            f" cache ({mode}, {tokens} tokens) and {beside / GIB:.1f} GiB beside; {free} GiB of the"
            f" GPUs are free, less a gpu_reserve of {self._config.gpu_reserve}. "
            + (f"What would fit: {', or '.join(would)}" if would else "No cache would fit")
        )


def _whole_parts(total: int, sizes: Sequence[int]) -> list[int]:
    """In the ratio of the sizes; what is left over goes to those that lack most."""
    sizes = sizes if any(sizes) else [1] * len(sizes)
    parts = [total * size // sum(sizes) for size in sizes]
    lacking = sorted(range(len(sizes)), key=lambda i: -(total * sizes[i] % sum(sizes)))
    for i in lacking[: total - sum(parts)]:
        parts[i] += 1
    return parts
