"""An EXL3 model with the interface that the generator calls. Used on the engine thread."""

from collections.abc import Mapping
from typing import Any

import torch

from switchyard.engine.backends.exl3.cache import Exl3Cache
from switchyard.engine.backends.exl3.config import Exl3Config
from switchyard.engine.errors import ModelError


class Exl3Model:
    """The model interface that ExLlamaV2DynamicGenerator uses with pages: `config` and
    `forward_chunk`.
    """

    def __init__(self, config: Exl3Config, library: Any) -> None:
        """`library`: exllamav3's Model."""
        self.config = config
        self.library = library

    @torch.inference_mode()
    def forward_chunk(
        self,
        input_ids: torch.Tensor,
        cache: Exl3Cache,
        attn_params: Any,
        preprocess_only: bool = False,
        loras: Any = None,
        indexed_embeddings: Any = None,
    ) -> dict[str, torch.Tensor]:
        """Write keys and values of `input_ids`, (batch, q_len), into `cache`. Returns "logits",
        (batch, q_len, vocabulary with the weights' padding), unless `preprocess_only`.

        `attn_params`: exllamav2's PagedParams. Raises IndexError for a token id beyond the
        vocabulary.
        """
        if loras or indexed_embeddings:
            raise ModelError("EXL3 models support neither LoRAs nor images")
        if int(input_ids.max()) >= self.config.vocab_size:
            raise IndexError(
                f"a token id is beyond the model's {self.config.vocab_size} embeddings"
            )
        input_ids = input_ids.clamp(min=0)  # as in exllamav2, a negative id counts as token 0
        params = forward_params(
            cache, attn_params.block_index, attn_params.cache_seqlens, self.library.caps
        )
        if preprocess_only:
            self.library.prefill(input_ids, params)
            return {}
        return {"logits": self.library.forward(input_ids, params)}

    def unload(self) -> None:
        self.library.unload()


def forward_params(
    cache: Exl3Cache, pages: torch.Tensor, positions: torch.Tensor, caps: Mapping[str, object]
) -> dict[str, Any]:
    """Returns the parameters that exllamav3's passes read. `pages`: cache pages, (rows, pages),
    int32. `positions`: positions of each row's first token, (rows,), int32. `caps`: the
    capabilities of exllamav3's model.
    """
    return {
        "attn_mode": "flash_attn",
        "block_table": pages,
        "cache": cache.library,
        "cache_seqlens": positions,
        "positions": positions if "mrope" in caps else None,
        "position_ids": None,
        "recurrent_states": None,
        "indexed_embeddings": [],
    }
