"""Jobs of all kinds for a small cache, and looks at its table of pages."""

import threading
from dataclasses import replace

import pytest

from switchyard.engine.grammar import constraints
from switchyard.engine.job import Healing
from switchyard.engine.messages import Chunk, Finished
from switchyard.engine.sampling import Sampling
from tests.engine.exl2.drive import GREEDY, prompt
from tests.scripted import job

SIZE = 256
SEEDED = Sampling(temperature=0.9, top_k=20)
WORDS = constraints.regex("[a-z ]{120,140}")


def kinds(chance):
    """A job of each kind, of a random length."""
    seeded = replace(SEEDED, seed=chance.randrange(10**6))
    return {
        "greedy": {"sampling": GREEDY},
        "seeded": {"sampling": seeded},
        "stop strings": {"sampling": seeded, "stop_strings": ("st", "qu"), "min_new_tokens": 90},
        "penalties": {"sampling": replace(seeded, repetition_penalty=1.2, frequency_penalty=0.5)},
        "DRY": {"sampling": replace(GREEDY, dry_multiplier=0.8)},
        "mirostat": {"sampling": replace(seeded, top_k=0, mirostat_tau=5.0, mirostat_eta=0.1)},
        "XTC": {"sampling": replace(seeded, xtc_probability=0.5, xtc_threshold=0.05)},
        "logprobs": {"sampling": seeded, "num_logprobs": 2},
        "scored": {"sampling": seeded, "prompt_logprobs": 1},
        "healing": {"sampling": seeded, "healing": Healing("t", tuple(range(500, 520)))},
        "pair": {
            "sampling": replace(seeded, cfg_scale=1.5),
            "negative_prompt": prompt(chance.randrange(10**6), chance.randrange(2, 300)),
        },
        "constraint": {"sampling": seeded, "constraint": WORDS, "ignore_eos": False},
    }


def jobs(chance):
    """Some begin alike, and some are equal."""
    shared = prompt(77, 300)
    found = []
    for kind, more in kinds(chance).items():
        own = prompt(chance.randrange(10**6), chance.randrange(2, 420))
        start = (shared + own[:40], own)[chance.random() < 0.7]
        more = {"ignore_eos": True, "prompt": start, **more}
        found.append(job(kind, chance.randrange(100, 300), **more))
    found += [replace(one, identifier=f"{one.identifier} again") for one in found[:2]]
    chance.shuffle(found)
    return found


def step(backend):
    """Looks at late masks now and then, as an engine thread does: slow constraints take turns."""
    wake = threading.Event()
    while backend.is_waiting(wake.set):
        wake.wait(0.02)
    return backend.iterate()


def watch(backend):
    """The library checks its table after each change of it."""
    generator = backend._generator
    validate = generator._ExLlamaV2DynamicGenerator___validate_cache

    def check():
        active = generator.active_jobs  # a pair's prompts are computed one by one
        if all(len(one.sequences) == one.job.num_sequences for one in active):
            validate()

    generator.validate_cache = check


def look(backend):
    """Check that each page is of a text, and has its hash if it is full, and that passes get the
    pages that their jobs have.
    """
    from exllamav2.generator.dynamic import _tensor_hash_checksum  # once the backend is installed

    generator = backend._generator
    generator.validate_cache()
    for row, one in enumerate(generator._rows):
        if one is not None and one.is_active and one.row == row and not one.is_moved:
            pages = [page.page_index for page in one.sequences[0].allocated_pages]
            assert [*generator._table[row, : len(pages)]] == pages
    for one in generator.active_jobs:
        for sequence in one.sequences:
            ids, before = sequence.sequence_ids.torch(), None
            for i, page in enumerate(sequence.allocated_pages):
                own = ids[:, i * SIZE : min((i + 1) * SIZE, sequence.kv_position)]
                computed = own.shape[-1]
                assert (page.sequence[:, :computed] == own).all()
                if computed:
                    assert page.kv_position >= computed and page.prev_hash == before
                if computed == SIZE and one.job.prompt_logprobs is None:
                    assert page.phash == _tensor_hash_checksum(own, before)
                before = page.phash
    for one in generator.parked:
        assert one.num_held_pages == 0 and not one.is_active


def park_at_borders(backend, monkeypatch):
    """Park each job in its prompt, after its first token, and around each border of a page."""
    generator, done = backend._generator, set()
    with_pages = generator.with_pages

    def due(ahead):
        for one in generator.active_jobs:
            at = one.position() + ahead
            if not one.is_decoding:
                is_due = one.is_scored and one.start > 0
                at = -1
            else:
                is_due = one.num_sampled + ahead == 1 or (at + 1) % SIZE < 3
            if is_due and (one, at) not in done:
                yield one, at

    def park_some(jobs, num_tokens):
        found = list(due(0))
        for one, at in found:
            done.add((one, at))
            generator.park(one)
        return with_pages(jobs, num_tokens)

    monkeypatch.setattr(generator, "with_pages", park_some)

    def unless_due(launch):
        return lambda *args: None if list(due(1)) else launch(*args)

    for name in ("_launch_behind", "_launch_ahead"):
        monkeypatch.setattr(generator, name, unless_due(getattr(generator, name)))
    return done


def told(events):
    """What a client sees of each job: text, tokens, logprobs, the end."""
    found = {}
    for identifier, of_job in events.items():
        chunks = [event for event in of_job if isinstance(event, Chunk)]
        last = of_job[-1]
        assert isinstance(last, Finished), last
        found[identifier] = (
            "".join(chunk.text for chunk in chunks),
            [token_id for chunk in chunks for token_id in chunk.token_ids],
            [
                (one.token_id, pytest.approx(one.logprob, abs=1e-3))
                for chunk in chunks
                for one in chunk.logprobs or ()
            ],
            (last.finish_reason, last.stop_reason, last.prompt_tokens, last.new_tokens),
        )
    return found
