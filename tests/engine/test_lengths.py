"""The lengths that a model is loaded for, by hand from their definitions."""

import pytest

from switchyard import engine
from switchyard.engine.config import ModelConfig
from switchyard.engine.memory.lengths import graph_rows, lengths
from tests.engine.failing import names

NATIVE, VOCAB_SIZE = 2048, 100


def of(native=NATIVE, vocab_size=VOCAB_SIZE, **settings):
    return lengths(ModelConfig("path", "m", "cuda", **settings), native, vocab_size)


@pytest.mark.parametrize(
    ("settings", "native", "expected"),
    [
        ({}, 2048, (2048, 512, 1)),
        ({}, 256, (256, 256, 1)),
        ({}, 1000, (768, 512, 1)),  # whole pages
        ({"max_seq_len": 511}, 2048, (256, 256, 1)),
        ({"max_chunk_size": 16}, 2048, (2048, 512, 1)),
        ({"max_chunk_size": 513}, 2048, (2048, 768, 1)),
        ({"max_chunk_size": 4096}, 2048, (2048, 2048, 1)),
        ({"max_batch_size": 64}, 2048, (2048, 512, 1)),
        ({"max_batch_size": 65}, 2048, (2048, 512, 2)),  # 8 tokens each
        ({"max_seq_len": 4096, "rope_scale": 2.0}, 2048, (4096, 512, 1)),
        ({"max_seq_len": 4096, "rope_alpha": 2.6}, 2048, (4096, 512, 1)),
    ],
)
def test_context_and_inputs_are_whole_pages(settings, native, expected):
    found = of(native, **settings)
    assert (found.max_seq_len, found.max_input_len, found.max_batch_size) == expected
    assert found.max_output_len is None


@pytest.mark.parametrize(
    ("settings", "rows", "max_input_len", "max_output_len"),
    [
        ({"max_batch_size": 512}, VOCAB_SIZE, 512, 656),  # 512 rows of 128 logits, 100 used
        ({"max_batch_size": 513}, 96, 768, 768),
        ({"max_batch_size": 512, "num_draft_tokens": 4}, 96, 512, 512),  # unused
        ({"max_batch_size": 512, "num_draft_tokens": 4, "ngram_draft": True}, 96, 2560, 2560),
    ],
)
def test_buffers_across_gpus_hold_a_row_for_each_token_of_a_step(
    settings, rows, max_input_len, max_output_len
):
    found = of(vocab_size=rows, tensor_parallel=True, **settings)
    assert (found.max_input_len, found.max_output_len) == (max_input_len, max_output_len)


@pytest.mark.parametrize(
    ("settings", "native", "param"),
    [
        ({"max_seq_len": 2049}, 2048, "max_seq_len"),
        ({"max_seq_len": 2049, "rope_scale": 1.0, "rope_alpha": 1.0}, 2048, "max_seq_len"),
        ({}, 255, None),
    ],
)
def test_a_context_that_the_model_has_not_is_refused(settings, native, param):
    with pytest.raises(engine.ModelError, check=names(param)):
        of(native, **settings)
    assert of(2048, max_seq_len=2048).max_seq_len == 2048


TO_64 = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)


@pytest.mark.parametrize(
    ("max_rows", "expected"),
    [
        (1, [1, 2]),
        (2, [1, 2, 4]),
        (3, [1, 2, 3, 4]),
        (96, [*TO_64, 96, 128]),
        (127, [*TO_64, 96, 127, 128]),
        (128, [*TO_64, 96, 128, 192]),
        (129, [*TO_64, 96, 128, 129, 192]),
        (300, [*TO_64, 96, 128, 192, 256, 300, 320]),
        (512, [*TO_64, 96, 128, 192, 256, 320, 384, 448, 512, 576]),
    ],
)
def test_batch_sizes_to_try_are_those_below_the_most_and_one_above(max_rows, expected):
    assert graph_rows(max_rows) == expected
    contexts = 3  # two short ones, and the whole
    assert of(max_batch_size=max_rows).num_kept_logits == contexts * sum(expected)
