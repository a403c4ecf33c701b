"""Which batches have CUDA graphs."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from switchyard.engine.backends.exl2 import cpu


@pytest.mark.parametrize("max_rows", [1, 3, 32, 100, 128, 129, 256, 300, 512])
def test_there_is_a_graph_for_every_batch(max_rows):
    cpu.install()
    from switchyard.engine.backends.exl2.cuda.passes import graph_rows

    sizes = graph_rows(max_rows)
    assert sizes[-1] == max_rows
    assert sizes[:1] == [1] and sorted(set(sizes)) == sizes
    assert all(b <= max(2 * a, a + 64) for a, b in itertools.pairwise(sizes))


@pytest.mark.parametrize("token_id", [-1, 10])
def test_a_token_without_an_embedding_is_not_sent_to_the_device(token_id):
    cpu.install()
    from switchyard.engine.backends.exl2.cuda.passes import Passes

    passes = object.__new__(Passes)
    passes._embeddings = SimpleNamespace(size=10)
    with pytest.raises(IndexError, match="beyond 10 embeddings"):
        passes.run(torch.tensor([3, token_id]), [0, 0], np.zeros((2, 1), dtype=np.int32))
    assert not passes.compute(torch.tensor([[3, token_id]]), [0], np.zeros((1, 1), dtype=np.int32))
