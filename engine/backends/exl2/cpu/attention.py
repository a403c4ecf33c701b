"""The attention of new tokens to the pages of their sequences."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

# Up to this length, one padded copy of all sequences is faster than a call for each sequence.
# Beyond it, the copy exceeds the processor's cache. Measured with 8 and 32 sequences.
MAX_BATCHED_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Read:
    """The first `length` tokens of each of `count` sequences, beginning with row `first` of the
    batch. Each sequence's new tokens attend to these tokens.
    """

    first: int
    count: int
    length: int
    start: int  # their place in the cache, if they are contiguous
    slots: torch.Tensor | None  # otherwise the slot of each token, (count * length)
    mask: torch.Tensor | None  # added to the scores
    is_causal: bool


class PagedAttention:
    """Attention over the paged cache in one forward pass. The same object is used for every layer.
    A token's slot is its index in the cache: the start of its page plus its index in the page.
    """

    def __init__(self, params: Any, q_len: int) -> None:
        """`params`: exllamav2's PagedParams, with the block table of a batch of sequences."""
        starts = params.cache_seqlens.long()
        self._page_size = params.page_size
        self._blocks = params.block_index.long()
        self._q_len = q_len
        self._copies: torch.Tensor | None = None
        positions = starts[:, None] + torch.arange(q_len)
        pages = self._blocks.gather(1, positions // self._page_size)
        self.positions = positions.view(-1)
        self.slots = (pages * self._page_size + positions % self._page_size).view(-1)
        lengths: list[int] = (starts + q_len).tolist()
        if len(lengths) > 1 and max(lengths) <= MAX_BATCHED_TOKENS:
            self._reads = [self._read_batch(positions, max(lengths))]
        else:
            self._reads = [self._read_sequence(i, length) for i, length in enumerate(lengths)]

    def attend(
        self, queries: torch.Tensor, state: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Returns the attention of `queries`, (batch * q_len, heads, head_dim), as (batch * q_len,
        heads * head_dim).

        `state`: one layer of the cache, (tokens, 2 * kv_heads, head_dim). `keys` and `values`: the
        two halves of `state`, as (1, kv_heads, tokens, head_dim).
        """
        kv_heads, head_dim = keys.shape[1], keys.shape[3]
        if self._q_len == 1:
            # Treating a group's query heads as rows of one matrix saves a copy of the keys.
            queries = queries.view(queries.shape[0], kv_heads, -1, head_dim)
        else:
            queries = queries.view(-1, self._q_len, *queries.shape[1:]).transpose(1, 2)
        attended = []
        for read in self._reads:
            if read.slots is None:
                k = keys.narrow(2, read.start, read.length)
                v = values.narrow(2, read.start, read.length)
            else:
                copy = torch.index_select(state, 0, read.slots, out=self._room(state, read.slots))
                copy = copy.view(read.count, read.length, -1, head_dim).transpose(1, 2)
                k, v = copy[:, :kv_heads], copy[:, kv_heads:]
            attended.append(
                F.scaled_dot_product_attention(
                    queries[read.first : read.first + read.count],
                    k,
                    v,
                    attn_mask=read.mask,
                    is_causal=read.is_causal,
                    enable_gqa=self._q_len > 1,
                )
            )
        out = attended[0] if len(attended) == 1 else torch.cat(attended)
        if self._q_len > 1:
            out = out.transpose(1, 2)
        return out.reshape(out.shape[0] * self._q_len, -1)

    def _room(self, state: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """A buffer for copies, shared by all layers, because allocating memory would cost more than
        the copy.
        """
        if self._copies is None or len(self._copies) < len(slots):
            self._copies = state.new_empty((len(slots), *state.shape[1:]))
        return self._copies[: len(slots)]

    def _read_batch(self, positions: torch.Tensor, length: int) -> Read:
        """Reads all sequences at once, padded to the longest."""
        tokens = torch.arange(length)
        pages = self._blocks[:, tokens // self._page_size]
        slots = (pages * self._page_size + tokens % self._page_size).view(-1)
        mask = torch.zeros(*positions.shape, length)
        mask.masked_fill_(tokens > positions[:, :, None], -torch.inf)
        return Read(0, positions.shape[0], length, 0, slots, mask[:, None], False)

    def _read_sequence(self, row: int, length: int) -> Read:
        size = self._page_size
        blocks = self._blocks[row, : -(-length // size)]
        first = int(blocks[0])
        slots = None
        if blocks[-1] - first != len(blocks) - 1 or (blocks.diff() != 1).any():
            tokens = torch.arange(length)
            slots = blocks[tokens // size] * size + tokens % size
        mask = None
        is_causal = self._q_len == length > 1
        if not is_causal and self._q_len > 1:
            mask = torch.full((self._q_len, length), -torch.inf).triu(length - self._q_len + 1)
        return Read(row, 1, length, first * size, slots, mask, is_causal)
