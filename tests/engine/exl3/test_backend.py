"""The generator over an EXL3 model, which a plain Llama stands in for: the same jobs, the same
texts as over that Llama itself.
"""

import pytest

from switchyard.engine.config import ModelConfig
from switchyard.engine.messages import Chunk
from switchyard.engine.sampling import Sampling
from tests.engine.exl2.drive import GREEDY, Faults, prompt
from tests.engine.exl3 import stand_in
from tests.engine.forced import ending, exl2_backend, run
from tests.scripted import job

PAIR = {"negative_prompt": prompt(9, 30), "sampling": Sampling(temperature=0.0, cfg_scale=2.0)}


def exl3_backend(path, is_overlapping=False, wrap=None, **config):
    """The backend with all but exllamav3's model and cache."""
    stand_in.install()
    from switchyard.engine.backends.exl.loaded import LoadedModel
    from switchyard.engine.backends.exl2.backend import Exl2Backend
    from switchyard.engine.backends.exl2.cpu.cache import CpuCache
    from switchyard.engine.backends.exl2.cpu.llama import CpuLlama
    from switchyard.engine.backends.exl2.load.config import read_config as read_exl2
    from switchyard.engine.backends.exl3.cache import Exl3Cache
    from switchyard.engine.backends.exl3.config import read_config
    from switchyard.engine.backends.exl3.model import Exl3Model
    from switchyard.engine.model.model_dir import ModelDir

    def load(config, exl3_config, progress):
        llama = CpuLlama(read_exl2(config, ModelDir.read(path), "cpu"))
        llama.load(progress)
        cache = stand_in.PlainCache(CpuCache(llama, max_seq_len=config.cache_tokens))
        model = Exl3Model(exl3_config, stand_in.PlainLibrary(llama))
        if wrap is not None:
            model.forward_chunk = wrap(model.forward_chunk)
        return LoadedModel(model, Exl3Cache(cache), "float32")

    class TestedBackend(Exl2Backend):
        def _make_generator(self):
            generator = super()._make_generator()
            generator.is_overlapping = is_overlapping
            return generator

    backend = TestedBackend(ModelConfig(path, "test", **config), "cpu", load, read=read_config)
    backend.open()
    return backend


@pytest.fixture(params=[False, True], ids=["in turn", "overlapping"])
def is_overlapping(request):
    return request.param


@pytest.fixture
def both(model_path, is_overlapping):
    """The backend for EXL3, and that for EXL2 over the same Llama."""
    second = exl2_backend(model_path, is_overlapping=is_overlapping)
    opened = [exl3_backend(model_path, is_overlapping), second]
    second.open()
    yield opened
    for backend in opened:
        backend.close()


def told(events):
    """What clients get of each job, whatever the steps."""
    found = {}
    for name, job_events in events.items():
        chunks = [event for event in job_events if isinstance(event, Chunk)]
        token_ids = [token_id for chunk in chunks for token_id in chunk.token_ids]
        logprobs = [
            (one.token_id, round(one.logprob, 3))
            for chunk in chunks
            for one in chunk.logprobs or () or ()
        ]
        found[name] = token_ids, logprobs, type(job_events[-1])
    return found


def test_jobs_have_the_texts_that_they_have_over_the_model_itself(both):
    """Prompts below, at and beyond a page; the second round finds pages, and copies the beginning
    of one.
    """
    rounds = [
        [job(f"job{n}", 24, prompt=prompt(n, n), sampling=GREEDY) for n in (5, 255, 256, 257, 600)],
        [
            job("pair", 24, prompt=prompt(600, 600), **PAIR),
            job("same", 24, prompt=prompt(600, 600), sampling=GREEDY, num_logprobs=2),
            job("half", 24, prompt=prompt(600, 400) + prompt(1, 60), sampling=GREEDY),
            job("seeded", 24, prompt=prompt(3, 40), sampling=Sampling(temperature=1.5, seed=3)),
        ],
    ]
    for jobs in rounds:
        exl3, exl2 = (told(run(backend, *jobs)) for backend in both)
        assert exl3 == exl2


def test_a_prompt_is_scored_as_over_the_model_itself(both):
    one = job("scored", 0, prompt=prompt(4, 300), prompt_logprobs=1)
    exl3, exl2 = (
        [e for e in run(backend, one)["scored"] if hasattr(e, "logprobs")] for backend in both
    )
    assert [len(event.logprobs) for event in exl3] == [300]
    for own, other in zip(exl3[0].logprobs[1:], exl2[0].logprobs[1:], strict=True):
        assert own.token_id == other.token_id
        assert own.logprob == pytest.approx(other.logprob, abs=1e-3)


@pytest.mark.parametrize("length", [255, 256])
def test_a_step_that_fails_at_the_border_of_a_page_is_tried_again(model_path, length):
    faults = Faults()
    backend = exl3_backend(model_path, wrap=faults)
    one = job("job", 20, prompt=prompt(1, length), sampling=GREEDY)
    alone = ending(run(backend, one)["job"]).text
    faults.left = 2
    assert ending(run(backend, one)["job"]).text == alone
    assert not faults.left
    backend.close()


def test_a_token_that_has_no_embedding_fails_its_job_alone(both):
    backend, _ = both
    far = backend._loaded.model.config.vocab_size
    good = job("good", 8, prompt=prompt(1, 20), sampling=GREEDY)
    bad = job("bad", 8, prompt=(*prompt(2, 20), far, 5), sampling=GREEDY)
    events = run(backend, good, bad)
    assert type(events["good"][-1]).__name__ == "Finished"
    assert type(events["bad"][-1]).__name__ == "Failed"
