"""How many tokens a loaded model is made ready for: its work space follows from them."""

from dataclasses import dataclass

from switchyard.engine.config import PAGE_SIZE, ModelConfig
from switchyard.engine.errors import ModelError

# Tokens of a prompt at once, by device: what keeps the gaps of running streams under three times
# what they are without newcomers (benchmarks/prefill.py).
CHUNK_SIZES = {"cpu": 64, "cuda": 512}
LONE_CHUNK_SIZE = 512  # at least, while nobody decodes who would have to wait; none above is more
MAX_STEP = 8  # tokens of a job in one step; more than one where some are guessed

# Tokens: texts up to these have graphs of their own, with less work in attention, which is divided
# by how long the longest may be.
SHORT_CONTEXTS = (512, 2048)
# Rows that graphs are tried for, and then every 64; a smaller batch is filled up, to the size that
# was measured to be the fastest. From 33 on or so exllamav2 unpacks the weights first, which takes
# the same time for any number.
GRAPH_ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96)
MORE_ROWS = 64


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of exllamav2's configuration, and by its names."""

    max_seq_len: int
    max_input_len: int
    max_batch_size: int  # inputs of that length: each place in the batch takes a few tokens
    max_output_len: int | None = None
    num_kept_logits: int = 0  # rows, by graphs of decode steps, if all that are tried are used


def lengths(config: ModelConfig, native: int, vocab_size: int) -> Lengths:
    """`native`: tokens of context that the model was made for. Raises ModelError."""
    is_scaled = (config.rope_scale or 1.0) > 1.0 or (config.rope_alpha or 1.0) > 1.0
    asked = config.max_seq_len
    if asked is not None and asked > native and not is_scaled:
        raise ModelError(
            f"max_seq_len {asked}: the model was made for {native} tokens; more need a rope_alpha"
            " or a rope_scale",
            "max_seq_len",
        )
    if (asked or native) < PAGE_SIZE:
        raise ModelError(f"a context of {native} tokens is less than a page of {PAGE_SIZE}")
    # Whole pages: the loader cuts the longest input to this, and that must be whole pages.
    max_seq_len = (asked or native) // PAGE_SIZE * PAGE_SIZE
    chunk_size = max(config.max_chunk_size or 0, LONE_CHUNK_SIZE)
    max_input_len = min(_whole_pages(chunk_size), max_seq_len)
    max_output_len = None
    if config.tensor_parallel:  # its buffers have no room for more rows than that
        num_rows = config.max_batch_size * (1 + config.num_draft_tokens * config.has_draft)
        max_input_len = max(max_input_len, _whole_pages(num_rows))
        # Of this and the vocabulary is its buffer of logits, whose rows are multiples of 32 wide.
        padded = vocab_size + -vocab_size % 32
        max_output_len = -(-max_input_len * padded // vocab_size)
    max_batch_size = -(-MAX_STEP * config.max_batch_size // max_input_len)
    num_kept_logits = (len(SHORT_CONTEXTS) + 1) * sum(graph_rows(config.max_batch_size))
    return Lengths(max_seq_len, max_input_len, max_batch_size, max_output_len, num_kept_logits)


def graph_rows(max_rows: int) -> list[int]:
    """Of the batches that are tried: up to `max_rows`, that, and one more, which may be faster."""
    sizes = (*GRAPH_ROWS, *range(2 * MORE_ROWS, max_rows + 2 * MORE_ROWS, MORE_ROWS))
    above = next(rows for rows in sizes if rows > max_rows)
    return sorted({max_rows, above, *(rows for rows in sizes if rows < max_rows)})


def _whole_pages(tokens: int) -> int:
    return -(-tokens // PAGE_SIZE) * PAGE_SIZE
