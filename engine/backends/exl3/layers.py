"""An exllamav3 model on one GPU, with all inputs on that GPU. Used on the engine thread."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from switchyard.engine.backends.exl2.cuda.kept import NEVER
from switchyard.engine.backends.exl3.cache import Exl3Cache
from switchyard.engine.backends.exl3.library import PLAIN, mend_pointers
from switchyard.engine.backends.exl3.model import forward_params

NUM_WARM = 3  # passes: Triton compiles in the first, exllamav3 measures its kernels in the next
MAX_TOKENS = 512  # in a captured pass of prompts


def can_capture(library: Any) -> bool:
    """Whether all passes of exllamav3's model launch the same work, which is true if it has only
    plain layers and its embeddings are in memory. The model must be loaded.
    """
    modules = [module for module, _, _ in library.fwd_modules]
    embedding = modules[0].embedding
    return all(type(module).__name__ in PLAIN for module in modules) and isinstance(
        embedding, torch.nn.Embedding
    )


class Unpacking:
    """Unpacks weights to float16 in each pass of `min_tokens` tokens or more. For 145 tokens or
    more, the layers do so in any case.
    """

    num_bytes = 0

    def __init__(self) -> None:
        self.min_tokens = NEVER

    def close(self) -> None:
        self.min_tokens = NEVER


class Exl3Layers:
    """The `Layers` of a model for which `can_capture` returns True. The embeddings are on the GPU,
    too.
    """

    def __init__(self, library: Any, cache: Exl3Cache, device: torch.device) -> None:
        """`library`: exllamav3's model, which must be loaded."""
        self.device = device
        self.max_tokens = MAX_TOKENS
        self.unpacked = Unpacking()
        self._library = library
        self._cache = cache
        self._embedding = library.modules[0]
        self._table: Any = self._embedding.embedding.weight.data.to(device)
        mend_pointers()

    def begin(self) -> None:
        pass

    def prepare(self, token_ids: torch.Tensor, pages: torch.Tensor) -> None:
        positions = torch.zeros(len(token_ids), dtype=torch.int32, device=self.device)
        for _ in range(NUM_WARM):
            self.logits(token_ids, positions, pages)

    def logits(
        self, token_ids: torch.Tensor, positions: torch.Tensor, pages: torch.Tensor
    ) -> torch.Tensor:
        with self._all_but_embeddings():
            x: torch.Tensor = self._library.forward_ls(*self._inputs(token_ids, positions, pages))
        return x

    def compute(
        self, token_ids: torch.Tensor, positions: torch.Tensor, pages: torch.Tensor
    ) -> None:
        with self._all_but_embeddings():
            self._library.prefill_ls(*self._inputs(token_ids, positions, pages))

    @contextlib.contextmanager
    def _all_but_embeddings(self) -> Iterator[None]:
        """The modules that exllamav3's passes compute."""
        modules = self._library.fwd_modules
        self._library.fwd_modules = modules[1:]
        try:
            yield
        finally:
            self._library.fwd_modules = modules

    def _inputs(
        self, token_ids: torch.Tensor, positions: torch.Tensor, pages: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Returns what exllamav3's Embedding would return, and the parameters that layers read."""
        module = self._embedding
        x = F.embedding(token_ids, self._table)
        if module.multiplier != 1.0:
            x = x * module.multiplier
        x = x.to(module.out_dtype)
        if module.normalize:
            x = x * x.shape[-1] ** 0.5
        params = forward_params(self._cache, pages, positions, self._library.caps)
        params["positions"] = positions
        if token_ids.numel() >= self.unpacked.min_tokens:
            params["reconstruct"] = True
        return x.view(len(positions), -1, x.shape[-1]), params

    def have(self, token_ids: torch.Tensor) -> bool:
        least, most = token_ids.aminmax()
        return int(least) >= 0 and int(most) < len(self._table)

    def close(self) -> None:
        self._table = None
