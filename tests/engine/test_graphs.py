"""Which batches have CUDA graphs."""

import types

import numpy as np
import pytest
import torch

from switchyard.engine.backends.exl2 import cpu
from tests.gpu.architectures.specs import SPECS

# Milliseconds as on an H200: slower and slower up to 32 rows, and then alike for any number.
STEPS = {1: 1.5, 2: 1.6, 4: 1.8, 8: 2.5, 16: 3.3, 24: 4.1, 32: 5.0, 48: 3.4, 64: 3.5}


@pytest.fixture
def sizes():
    from switchyard.engine.backends.exl2.cuda.captured.sizes import Sizes

    cpu.install()
    return Sizes


def test_a_batch_takes_the_fastest_size_that_holds_it(sizes):
    found = sizes(STEPS, 64)
    chosen = {rows: found.fit(rows, 0) for rows in (1, 3, 9, 16, 17, 24, 25, 32, 33, 48, 49, 64)}
    expected = {1: 1, 3: 4, 9: 16, 16: 16, 17: 48, 24: 48, 25: 48, 32: 48, 33: 48, 48: 48}
    assert chosen == {**expected, 49: 64, 64: 64}
    for rows in range(1, 65):
        fitting = [seconds for size, seconds in STEPS.items() if size >= rows]
        assert STEPS[found.fit(rows, 0)] <= min(fitting) * 1.02


def test_the_size_above_all_batches_is_left_where_it_is_no_faster(sizes):
    assert sizes({16: 3.3, 32: 5.0, 48: 3.4}, 32).used == [16, 32, 48]
    assert sizes({16: 3.3, 32: 3.4, 48: 3.5}, 32).used == [16, 32]


def test_noise_doesnt_make_a_batch_larger(sizes):
    assert sizes({8: 1.00, 16: 0.99, 32: 1.01}, 32).fit(5, 0) == 8


def test_passes_with_prompts_have_a_few_of_the_sizes(sizes):
    from switchyard.engine.backends.exl2.cuda.captured.sizes import joint_sizes

    assert joint_sizes([1, 2, 4, 8, 16, 24, 32, 48, 64, 96]) == [8, 24, 48, 96]
    assert joint_sizes([1, 2, 4]) == [4]


def test_prompts_are_computed_beside_a_step_where_that_takes_less_time(sizes):
    from switchyard.engine.backends.exl2.cuda.captured.joint import JointPasses
    from switchyard.engine.backends.exl2.cuda.captured.prompts import PromptShape

    shape = PromptShape(2, 1, 128)
    prompts = types.SimpleNamespace(shape=lambda prompts, num_pages: shape, seconds={128: 3.0})
    joint = JointPasses(None, None, prompts, sizes({8: 2.5, 16: 3.3, 48: 3.4, 64: 3.5}, 64))
    joint._graphs = dict.fromkeys([(8, shape), (16, shape), (64, shape)])
    joint._seconds = {(8, 128): 3.1, (16, 128): 6.9, (64, 128): 6.0}
    found = [joint.fit(..., rows, 1) for rows in (0, 1, 8, 9, 64)]
    assert found == [(8, shape), (8, shape), (8, shape), (64, shape), (64, shape)]
    assert joint.fit(..., 65, 1) is None
    joint._seconds[64, 128] = 6.2
    assert joint.fit(..., 40, 1) == (64, shape)  # with 48 rows, a step takes 3.4
    joint._seconds[64, 128] = 6.3
    assert (joint.fit(..., 40, 1), joint.fit(..., 64, 1)) == (None, (64, shape))


def test_rows_that_fill_up_cost_what_their_context_does(sizes):
    found = sizes(STEPS, 32)
    found.seconds_a_token = 1e-5  # for a row
    assert found.fit(24, 100) == 48  # 24 rows more, 0.7 faster
    assert found.fit(24, 10_000) == 24
    assert (found.fit(32, 5_000), found.fit(32, 20_000)) == (48, 32)  # 16 rows more, 1.6 faster
    assert found.used == [1, 2, 4, 8, 16, 24, 32, 48]


@pytest.mark.parametrize(
    ("other", "least"),
    [
        ({1: 1.0, 8: 1.9, 32: 2.0, 64: 2.1}, 8),
        ({1: 0.9, 8: 1.9, 32: 2.0, 64: 2.1}, 1),
        ({1: 0.9, 8: 2.6, 32: 2.0, 64: 2.1}, 32),  # slower once, so not for fewer rows either
        ({1: 1.0, 8: 1.9, 32: 2.0, 64: 3.6}, None),
        ({1: 1.0, 8: 2.4, 32: 4.95, 64: 3.49}, None),  # faster by less than the noise
    ],
)
def test_another_way_is_taken_from_the_size_on_where_it_stays_faster(sizes, other, least):
    from switchyard.engine.backends.exl2.cuda.captured.sizes import least_faster

    usual = {rows: STEPS[rows] for rows in other} | {1: 1.0}
    assert least_faster(usual, other) == least


@pytest.mark.parametrize(
    ("name", "is_plain"),
    [
        *(("llama", True), ("gemma2", True), ("glm4", True), ("starcoder2", True)),
        *(("mixtral", True), ("qwen3moe", True), ("dbrx", True), ("cohere", True)),
        *(("cohere2", True), ("gpt2", True), ("gptbigcode", True), ("qwen3moe-128", False)),
    ],
)
def test_models_without_graphs_of_ours_are_told_by_their_layers(build, name, is_plain):
    """They keep the library's."""
    from switchyard.engine.backends.exl2.cuda import plain

    assert plain.is_plain(build(SPECS[name], 1024)) == is_plain


@pytest.mark.parametrize("token_id", [-1, 10])
def test_a_token_without_an_embedding_is_not_sent_to_the_device(token_id):
    cpu.install()
    from switchyard.engine.backends.exl.loaded import PromptRows
    from switchyard.engine.backends.exl2.cuda.captured.passes import CapturedPasses
    from switchyard.engine.backends.exl2.cuda.layers import Embeddings, Exl2Layers

    passes = object.__new__(CapturedPasses)
    passes._layers = object.__new__(Exl2Layers)
    passes._layers._embeddings = Embeddings.__new__(Embeddings)
    passes._layers._embeddings._table = range(10)
    with pytest.raises(IndexError, match="a token id has no embedding"):
        passes.run(torch.tensor([3, token_id]), [0, 0], np.zeros((2, 1), dtype=np.int32))
    prompts = PromptRows(torch.tensor([[3, token_id]]), [0], np.zeros((1, 1), dtype=np.int32))
    assert not passes.compute(prompts)
    passes._joint = types.SimpleNamespace(fit=lambda *args: "a pass")
    assert not passes.can_join(prompts)


@pytest.mark.parametrize("loras", [[], ["an adapter"]])
def test_captured_passes_are_used_without_adapters_alone(loras):
    cpu.install()
    from switchyard.engine.backends.exl2.prompt_generator import PromptGenerator

    generator = object.__new__(PromptGenerator)
    generator.current_loras, generator._passes = loras, object()
    assert generator._graphs is (None if loras else generator._passes)
