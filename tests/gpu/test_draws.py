"""Draws as CUDA graphs."""

import pytest
import torch

from switchyard.engine.backends.sampling import candidates, filters
from switchyard.engine.backends.sampling.draw import coded
from switchyard.engine.sampling import Sampling
from tests.engine.exl2.drive import prompt
from tests.engine.forced import run
from tests.scripted import job

pytestmark = pytest.mark.gpu

SETTINGS = [
    Sampling(temperature=1.0, top_k=50),
    Sampling(temperature=0.7, top_k=20, top_p=0.8),
    Sampling(temperature=1.3, top_k=100, min_p=0.05),
    Sampling(temperature=0.8, top_k=50, top_p=0.95, min_p=0.02),
    Sampling(temperature=2.0, top_k=1),
]


@pytest.mark.parametrize("number", [1, 5, 64])
def test_a_graph_draws_what_its_operations_draw(serve, larger, number, monkeypatch):
    """For the same random numbers: over 10,000 draws of 64 jobs."""
    backend = serve(larger, max_batch_size=64, cache_tokens=64 * 256)
    generator = backend._generator
    by_graph, drawn = generator.draw._few, []

    def both(settings, logits):
        columns = torch.tensor(settings, dtype=torch.float64, device="cuda")
        plain = coded(*candidates.choose(columns, logits[:, : generator.draw._vocab_size]))
        token_ids = by_graph(settings, logits)
        drawn.append((plain, token_ids if token_ids is None else token_ids.clone()))
        return token_ids

    monkeypatch.setattr(generator.draw, "_few", both)
    jobs = [
        job(f"job{i}", 200, prompt=prompt(i, 20), sampling=SETTINGS[i % 5], ignore_eos=True)
        for i in range(number)
    ]
    run(backend, *jobs)
    steps = [(plain.tolist(), found.tolist()) for plain, found in drawn if found is not None]
    assert len(steps) >= 190 and all(plain == found for plain, found in steps)
    num_draws = sum(len(plain) for plain, _ in steps)
    print(f"{num_draws} draws by graphs, of {len(drawn)} steps {len(steps)}")
    assert num_draws >= 150 * number


@pytest.mark.parametrize("rows", [1, 32, 200])
def test_top_p_keeps_what_it_keeps_on_the_host(rows):
    """Few rows are sorted as a whole, so that the host need not wait."""
    generator = torch.Generator().manual_seed(rows)
    spread = torch.linspace(0.01, 12, rows)[:, None]  # from flat rows to peaked ones
    logits = torch.randn((rows, 32768), generator=generator) * spread
    limits = torch.linspace(0.05, 0.999, rows)[:, None]
    on_gpu = logits.cuda()
    assert (on_gpu.numel() <= filters.MAX_SORTED) == (rows < 200)
    filters.top_p(logits, limits)
    filters.top_p(on_gpu, limits.cuda())
    kept, expected = (~found.isinf().cpu() for found in (on_gpu, logits))
    differing = (kept ^ expected).sum(-1)
    assert kept.sum() > rows and int(differing.max()) <= 1  # a sum's last bit at the border
