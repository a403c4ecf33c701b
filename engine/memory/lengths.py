"""The lengths, in tokens, for which a model is loaded. They determine its work space."""

from dataclasses import dataclass

from switchyard.engine.config import PAGE_SIZE, ModelConfig
from switchyard.engine.errors import ModelError

# Tokens of a prompt in one pass, by device. They keep the gaps of running streams under three times
# the gaps without new prompts (benchmarks/prefill.py).
CHUNK_SIZES = {"cpu": 64, "cuda": 512}
EXL3_CHUNK_SIZE = 256  # on a GPU
LONE_CHUNK_SIZE = 512  # at least, while no job decodes; larger chunks gain nothing
MAX_STEP = 8  # tokens of a job in one step, drafts included

# In tokens. Texts up to these lengths have their own graphs. A graph divides attention by its
# longest possible text, so these graphs do less work.
SHORT_CONTEXTS = (512, 2048)
# Batch sizes for which graphs are tried, followed by every 64 rows. A smaller batch is padded to
# the size that was measured to be fastest. From about 33 rows on, exllamav2 unpacks the weights
# first, which takes the same time for any number of rows.
GRAPH_ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96)
MORE_ROWS = 64


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths for exllamav2's configuration, under its names."""

    max_seq_len: int
    max_input_len: int
    max_batch_size: int  # inputs of `max_input_len`; each job adds a few tokens per step
    max_output_len: int | None = None
    num_kept_logits: int = 0  # rows of logits in decode graphs, if all tried sizes are used


def lengths(config: ModelConfig, native: int, vocab_size: int) -> Lengths:
    """`native`: the context that the model was made for, in tokens. Raises ModelError."""
    is_scaled = (config.rope_scale or 1.0) > 1.0 or (config.rope_alpha or 1.0) > 1.0
    asked = config.max_seq_len
    if asked is not None and asked > native and not is_scaled:
        raise ModelError(
            f"max_seq_len {asked}: the model was made for {native} tokens; a longer context"
            " needs rope_alpha or rope_scale",
            "max_seq_len",
        )
    if (asked or native) < PAGE_SIZE:
        raise ModelError(f"a context of {native} tokens is less than a page of {PAGE_SIZE}")
    # Whole pages: the loader cuts the longest input to this length, and inputs must be whole pages.
    max_seq_len = (asked or native) // PAGE_SIZE * PAGE_SIZE
    chunk_size = max(config.max_chunk_size or 0, LONE_CHUNK_SIZE)
    max_input_len = min(_whole_pages(chunk_size), max_seq_len)
    max_output_len = None
    if config.tensor_parallel:  # its buffers have no more rows than `max_input_len`
        num_rows = config.max_batch_size * (1 + config.num_draft_tokens * config.has_draft)
        max_input_len = max(max_input_len, _whole_pages(num_rows))
        # The size of its buffer of logits, whose rows are multiples of 32 wide.
        padded = vocab_size + -vocab_size % 32
        max_output_len = -(-max_input_len * padded // vocab_size)
    max_batch_size = -(-MAX_STEP * config.max_batch_size // max_input_len)
    num_kept_logits = (len(SHORT_CONTEXTS) + 1) * sum(graph_rows(config.max_batch_size))
    return Lengths(max_seq_len, max_input_len, max_batch_size, max_output_len, num_kept_logits)


def graph_rows(max_rows: int) -> list[int]:
    """The batch sizes to try: some below `max_rows`, `max_rows` itself, and one above it, which may
    be faster.
    """
    sizes = (*GRAPH_ROWS, *range(2 * MORE_ROWS, max_rows + 2 * MORE_ROWS, MORE_ROWS))
    above = next(rows for rows in sizes if rows > max_rows)
    return sorted({max_rows, above, *(rows for rows in sizes if rows < max_rows)})


def _whole_pages(tokens: int) -> int:
    return -(-tokens // PAGE_SIZE) * PAGE_SIZE
