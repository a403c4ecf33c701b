"""Which batches have CUDA graphs."""

import itertools

import pytest

from switchyard.engine.backends.exl2 import cpu


@pytest.mark.parametrize("max_rows", [1, 3, 32, 100, 128, 129, 256, 300, 512])
def test_there_is_a_graph_for_every_batch(max_rows):
    cpu.install()
    from switchyard.engine.backends.exl2.cuda.passes import graph_rows

    sizes = graph_rows(max_rows)
    assert sizes[-1] == max_rows
    assert sizes[:1] == [1] and sorted(set(sizes)) == sizes
    assert all(b <= max(2 * a, a + 64) for a, b in itertools.pairwise(sizes))
