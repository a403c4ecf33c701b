"""Prompts in rows of few lengths, as on a GPU, computed by a model on the CPU."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from switchyard.engine.messages import Chunk, Finished, Prefill
from tests.engine.exl2.drive import GREEDY, free_pages, prompt, states
from tests.engine.forced import ending, exl2_backend, run
from tests.scripted import job

pytestmark = pytest.mark.over_exl3("hardship")

LENGTHS = (32, 64, 128, 256, 512, 1024)
BASE = prompt(1, 800)


class Rows:
    """`Passes` of rows of these lengths; a prompt may not be computed in any other way."""

    def __init__(self, backend):
        self.num_rows = 0  # of a pass of a token each
        self._generator = backend._generator
        self._forward_chunk = self._generator.model.forward_chunk
        self._generator.model.forward_chunk = self._refuse
        self._generator._passes = self
        self.shapes = []
        self.joined = []  # the shapes of prompts computed beside rows

    def fit(self, length):
        return next((fitting for fitting in LENGTHS if fitting >= length), length)

    def compute(self, prompts):
        token_ids, starts, pages = prompts
        length = token_ids.shape[1]
        assert length in LENGTHS
        sequences = [s for one in self._generator.active_jobs for s in one.sequences]
        tables = [[page.page_index for page in s.allocated_pages] for s in sequences]
        for row, start in zip(pages.tolist(), starts, strict=True):
            written = row[: -(-(start + length) // 256)]
            assert any(table[: len(written)] == written for table in tables)  # and no other page
        self.shapes.append(tuple(token_ids.shape))
        self._forward(token_ids, starts, pages, preprocess_only=True)
        return True

    def can_join(self, prompts, num_rows=0, num_pages=1):
        return num_rows == 0 or num_rows % 5 > 0

    def run(self, token_ids, positions, pages, prompts=None):
        if prompts is not None:
            assert self.can_join(prompts, len(token_ids))
            self.compute(prompts)
            self.joined.append(tuple(prompts.token_ids.shape))
        return self._forward(token_ids[:, None], positions, pages)["logits"]

    def close(self):
        del self._generator.model.forward_chunk

    def _forward(self, token_ids, starts, pages, **more):
        generator, starts = self._generator, torch.tensor(starts, dtype=torch.int32)
        pages = torch.from_numpy(pages).contiguous()
        params = generator.get_paged_params(len(starts), pages, starts, token_ids.shape[1])
        return self._forward_chunk(
            input_ids=token_ids, attn_params=params, cache=generator.cache, **more
        )

    def _refuse(self, **more):
        raise AssertionError("not in rows")


@pytest.fixture
def opened(opened):
    return partial(opened, is_overlapping=True)


def of(name, token_ids, num_tokens=8, negative_prompt=()):
    sampling = replace(GREEDY, cfg_scale=1.5) if negative_prompt else GREEDY
    more = {"negative_prompt": negative_prompt, "sampling": sampling, "ignore_eos": True}
    return job(name, num_tokens, prompt=token_ids, **more)


def texts(backend, jobs):
    events = run(backend, *jobs)
    assert all(isinstance(events[one.identifier][-1], Finished) for one in jobs)
    assert free_pages(backend) == backend._generator.max_pages
    return {one.identifier: ending(events[one.identifier]).text for one in jobs}


# Lengths around those of rows and pages; beginnings that others have, in a page and beyond it.
JOBS = [
    *(of(f"alone{n}", prompt(n, n)) for n in (1, 2, 31, 33, 34, 129, 250, 257, 258, 400, 513)),
    *(of(f"long{n}", BASE[:n] + prompt(n, 230)) for n in (10, 40, 100, 300, 500, 700)),
    *(of(f"short{n}", BASE[:n] + prompt(n, 7)) for n in (40, 240, 247, 500)),
]

STREAM = of("stream", BASE, 150)


@pytest.fixture(scope="module")
def of_the_library(model_path):
    """The text of each, alone."""
    found = {}
    library = exl2_backend(model_path)
    library.open()
    for one in [STREAM, *JOBS]:
        library.reset()  # nothing is there that others have computed
        found |= texts(library, [one])
    library.close()
    return found


@pytest.mark.parametrize("chunk", [64, 300, 1024])
def test_prompts_give_the_texts_that_they_give_the_library(opened, of_the_library, chunk):
    backend = opened(max_chunk_size=chunk)
    rows = Rows(backend)
    found = texts(backend, [STREAM, *JOBS])
    assert max(count for count, _ in rows.shapes) > 1
    assert 0 < len(rows.joined) < len(rows.shapes)
    assert found == of_the_library
    assert texts(backend, JOBS[::-1]) == {one.identifier: found[one.identifier] for one in JOBS}


def test_prompts_are_computed_if_the_pass_beside_them_fails(opened, of_the_library):
    """The pass failed before it began, and what follows may read what was noted."""
    backend = opened()
    rows = Rows(backend)
    run_both, failures = rows.run, [RuntimeError("out of memory")]

    def fail_once(token_ids, positions, pages, prompts=None):
        if prompts is not None and failures:
            raise failures.pop()
        return run_both(token_ids, positions, pages, prompts)

    rows.run = fail_once
    some = [STREAM, *JOBS]
    assert texts(backend, some) == {one.identifier: of_the_library[one.identifier] for one in some}
    assert not failures


def test_a_pair_beside_prompts_that_wait_for_a_pass_reads_what_they_hold(opened):
    backend = opened(max_chunk_size=1024)
    jobs = [of("first", BASE[:400]), of("pair", BASE[:300], negative_prompt=BASE[:280])]
    expected = texts(backend, jobs)
    backend.reset()
    for layer in states(backend):
        layer.fill_(9.0)  # not what they held
    Rows(backend).close()  # a pair's prompts aren't computed in rows
    assert texts(backend, jobs) == expected


def test_an_iteration_launches_the_prompts_that_it_notes(opened):
    backend = opened()
    rows = Rows(backend)
    backend.enqueue(of("one", BASE))
    assert [e.done_tokens for e in backend.iterate() if isinstance(e, Prefill)] == [512]
    assert rows.shapes == [(1, 512)]
    backend.cancel("one")  # its pages are free


def cached_tokens(backend, token_ids):
    return run(backend, of("one", token_ids))["one"][-1].cached_tokens


def test_a_few_tokens_that_another_page_begins_with_are_computed_again(opened):
    backend = opened()
    run(backend, of("base", BASE[:400]))
    assert cached_tokens(backend, BASE[:31] + prompt(2, 50)) == 0
    assert cached_tokens(backend, BASE[:32] + prompt(3, 50)) == 32
    assert cached_tokens(backend, BASE[:11]) == 10
    assert cached_tokens(backend, BASE[:300] + prompt(4, 50)) == 300
    assert cached_tokens(backend, BASE[:280] + prompt(5, 50)) == 256


def test_cached_tokens_of_a_pair_are_those_of_one_prompt(opened):
    backend = opened()
    one = of("one", BASE[:300], 2, prompt(2, 300))
    cached = [run(backend, one)["one"][-1].cached_tokens for _ in range(2)]
    assert cached[0] == 0 < cached[1] < 300


def test_what_a_row_has_no_room_behind_begins_earlier_instead(opened):
    """200 tokens are there; a row of 64 for the other 41 would end behind the page."""
    backend = opened()
    run(backend, of("base", BASE[:300]))
    rows = Rows(backend)
    one = of("one", BASE[:200] + prompt(2, 42), 4)
    events = run(backend, one)["one"]
    assert rows.shapes == [(1, 64)]
    prefills = [e for e in events if isinstance(e, Prefill)]
    assert [(e.done_tokens, e.cached_tokens) for e in prefills] == [(241, 200)]
    assert events[-1].cached_tokens == 200
    backend.reset()
    assert ending(run(backend, one)["one"]).text == ending(events).text


def test_a_row_leaves_the_page_behind_it_alone_if_that_is_there(opened):
    """The first of a prompt's four pages is given away, as if it were the oldest. It is needed
    again, a part of it is there, and the row for the rest would reach into the second.
    """
    backend = opened(cache_tokens=6 * 256)
    rows = Rows(backend)
    one = of("one", BASE)
    expected = texts(backend, [of("long", prompt(2, 300), 200), one])["one"]
    starts = {BASE[at : at + 20] for at in (256, 512, 768)}
    for page in backend._generator.all_pages:
        beginning = tuple(page.sequence[0, :20].tolist())
        if beginning not in starts:
            page.access_serial = 0 if beginning == BASE[:20] else 1
    texts(backend, [of("first", BASE[:100] + prompt(3, 50))])
    rows.shapes.clear()
    events = run(backend, one)["one"]
    assert events[-1].cached_tokens == 100 + len(BASE) - 1 - 256
    assert rows.shapes == [(1, 256)]
    assert ending(events).text == expected


def test_a_job_with_few_pages_is_not_computed_in_a_long_row(opened):
    backend = opened(max_chunk_size=1024)
    rows = Rows(backend)
    texts(backend, [of("long", prompt(1, 400)), of("small", prompt(2, 20))])
    assert {*rows.shapes} == {(1, 512), (1, 32)}
    texts(backend, [of("other", prompt(3, 400)), of("large", prompt(4, 260))])
    assert rows.shapes[2:] == [(2, 512)]


def chunks(backend, one):
    """Ends of a prompt's chunks beside a job that decodes."""
    backend.enqueue(of("stream", prompt(9, 5), 60))
    while not any(isinstance(event, Chunk) for event in backend.iterate()):
        pass
    backend.enqueue(one)
    ends = []
    while len(one.prompt) - 1 not in ends:
        ends += [e.done_tokens for e in backend.iterate() if isinstance(e, Prefill)]
    return ends


def test_chunks_beside_a_job_that_decodes_end_with_pages(opened):
    ends = chunks(opened(max_chunk_size=300), of("one", BASE))
    assert ends == [*range(64, 799, 64), 799]


def test_a_prompt_is_scored_in_short_chunks_beside_a_job_that_decodes(opened):
    scored = replace(of("one", BASE[:200], 0), prompt_logprobs=0)
    assert chunks(opened(max_chunk_size=64), scored) == [64, 128, 192, 199]


def test_a_page_behind_another_beginning_is_not_copied(opened):
    backend = opened()
    run(backend, of("base", BASE[:400]))
    run(backend, of("other", prompt(6, 256) + prompt(7, 2)))
    assert cached_tokens(backend, prompt(6, 256) + BASE[256:400]) == 256


@pytest.mark.parametrize(
    ("length", "num_new", "negative"),
    [(100, 40, ()), (200, 120, ()), (250, 60, prompt(2, 100))],
    ids=["in a page", "behind a page that it has filled", "of a pair"],
)
def test_the_next_turn_finds_the_last_answer(opened, length, num_new, negative):
    backend = opened()
    events = run(backend, of("one", BASE[:length], num_new, negative))["one"]
    text = tuple(i for event in events if isinstance(event, Chunk) for i in event.token_ids)
    assert cached_tokens(backend, BASE[:length] + text + prompt(3, 20)) == length + num_new - 1


def test_a_pairs_progress_is_that_of_both_prompts(opened):
    one = of("one", BASE[:30], 2, prompt(2, 50))
    last = [event for event in run(opened(), one)["one"] if isinstance(event, Prefill)][-1]
    assert (last.done_tokens, last.total_tokens) == (78, 78)


def test_rows_in_a_pass_are_no_more_than_a_chunk(opened):
    backend = opened()
    backend._generator.max_chunk_size = 64
    rows = Rows(backend)
    texts(backend, [of(f"job{i}", prompt(i, 16)) for i in range(4)])
    assert sum(num_rows for num_rows, _ in rows.shapes) == 4
    assert max(num_rows * length for num_rows, length in rows.shapes) == 64


def test_rows_that_begin_on_different_pages_are_computed_together(opened):
    backend = opened()
    run(backend, of("base", BASE[:400]))
    rows = Rows(backend)
    first, second = of("first", prompt(5, 30)), of("second", BASE[:256] + prompt(6, 20))
    found = texts(backend, [first, second])
    assert rows.shapes == [(2, 32)]
    backend.reset()
    assert texts(backend, [second]) == {"second": found["second"]}
