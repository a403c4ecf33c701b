"""The paged key/value cache in ordinary memory."""

from typing import Any

import torch
from exllamav2.cache import ExLlamaV2CacheBase


class CpuCache(ExLlamaV2CacheBase):  # type: ignore[misc]  # exllamav2 is untyped
    """Keys and values of `max_seq_len` tokens, float32, in pages that the generator assigns.

    `states[layer]` is (1, tokens, 2 * kv_heads, head_dim), keys before values, so that one copy
    moves both. `key_states` and `value_states` are views of `states`, in the shape that exllamav2
    expects.
    """

    def __init__(self, model: Any, max_seq_len: int) -> None:
        """`model`: only its `config` is used, not its weights."""
        super().__init__(model, 1, max_seq_len, torch.float32, 1, 1, False, fixed_device="cpu")
        heads = self.num_key_value_heads
        shape = (1, self.max_seq_len, 2 * heads, self.head_dim)
        self.states = [torch.zeros(shape) for _ in range(self.num_hidden_layers)]
        self.key_states = [state[:, :, :heads] for state in self.states]
        self.value_states = [state[:, :, heads:] for state in self.states]
        # Views with heads before tokens, for attention.
        self.key_heads = [state.transpose(1, 2) for state in self.key_states]
        self.value_heads = [state.transpose(1, 2) for state in self.value_states]

    def all_tensors(self) -> list[torch.Tensor]:
        """Returns a tensor for each layer. The list is new each time, because the generator appends
        the tensors of a draft cache to it.
        """
        return list(self.states)
