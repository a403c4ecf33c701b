"""Log probabilities of tokens, from the model's raw logits."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from switchyard.engine.backends.sampling.transfer import upload
from switchyard.engine.messages import TokenLogprob

ROWS = 64  # rows converted to float32 at once; a whole chunk of a prompt would take too much memory


class Measured(NamedTuple):
    """The logprobs of tokens, and of the most probable tokens at the same positions."""

    logprobs: torch.Tensor  # (tokens,)
    top_ids: torch.Tensor  # (tokens, most probable)
    top_logprobs: torch.Tensor  # likewise


def measure(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> Measured:
    """`token_ids`: one for each row of `logits`, (rows, vocabulary). Doesn't wait for the
    device.
    """
    values = torch.log_softmax(logits.float(), dim=-1)
    best = values.topk(num_top)
    return Measured(values.gather(1, token_ids[:, None])[:, 0], best.indices, best.values)


def tell(token_ids: Sequence[int], measured: Sequence[torch.Tensor]) -> list[TokenLogprob]:
    """`measured`: the three tensors of a Measured, on the host."""
    logprobs, top_ids, top_logprobs = (tensor.tolist() for tensor in measured)
    tops = zip(top_ids, top_logprobs, strict=True)
    return [
        TokenLogprob(token_id, logprob, tuple(zip(*top, strict=True)))
        for token_id, logprob, top in zip(token_ids, logprobs, tops, strict=True)
    ]


def token_logprobs(
    logits: torch.Tensor, token_ids: Sequence[int], num_top: int
) -> list[TokenLogprob]:
    """Returns the logprobs of `token_ids`, one for each row of `logits`, (rows, vocabulary), each
    with the `num_top` most probable tokens at its position.
    """
    return tell(token_ids, measure(logits, upload(token_ids, torch.long, logits.device), num_top))


def score_chunk(generator: Any, sequence: Any, block_index: torch.Tensor, end: int) -> torch.Tensor:
    """Compute keys and values of a prompt's tokens up to `end`, and write them to the sequence's
    pages. Returns the logits after each token, (tokens, padded vocabulary).

    This function works like ExLlamaV2DynamicJob.prefill, but uses no cached tokens and returns all
    logits.
    """
    start, page_size = sequence.kv_position, generator.page_size
    token_ids = sequence.sequence_ids.torch_slice(start, end)
    params = generator.get_paged_params(
        1, block_index.unsqueeze(0), torch.tensor([start], dtype=torch.int32), end - start
    )
    if generator.draft_model is not None:
        generator.draft_model.forward_chunk(
            input_ids=token_ids,
            attn_params=params,
            cache=generator.draft_cache,
            preprocess_only=True,
        )
    logits: torch.Tensor = generator.model.forward_chunk(
        input_ids=token_ids,
        attn_params=params,
        cache=generator.cache,
        loras=generator.current_loras,
    )["logits"]
    sequence.kv_position = end
    previous = None
    # Includes the page after a full one: its predecessor must be known when it is filled.
    for i, page in enumerate(sequence.allocated_pages[: end // page_size + 1]):
        page.prev_hash, previous = previous, page.phash
        first, last = max(i * page_size, start), min((i + 1) * page_size, end)
        if first < last:
            page.kv_position = last - i * page_size
            page.sequence[:, first - i * page_size : page.kv_position].copy_(
                sequence.sequence_ids.torch_slice(first, last)
            )
    return logits[0]
