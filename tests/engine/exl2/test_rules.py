"""Jobs whose rules are still computed, beside others, over the real generator."""

import pytest

from switchyard.engine.messages import Chunk, Prefill, Started
from tests.engine.exl2.drive import Rule, prompt
from tests.scripted import job


@pytest.fixture
def started(forced):
    """A job of a late rule, perhaps beside one that decodes."""

    def start(is_beside, num_tokens):
        backend = forced(lambda t: {5: 0.0})
        if is_beside:
            backend.enqueue(job("decoding", 50, prompt=(1, 2)))
            while not any(isinstance(event, Chunk) for event in backend.iterate()):
                pass
        backend.enqueue(job("late", 3, prompt=prompt(1, num_tokens)))
        late = Rule()
        late.is_ready = False
        backend._jobs["late"].sampler.rules.append(late)
        return backend, late

    return start


@pytest.mark.parametrize("num_tokens", [30, 300])
def test_no_job_that_decodes_waits_for_a_newcomers_rule(started, num_tokens):
    backend, late = started(True, num_tokens)
    events = [event for _ in range(5) for event in backend.iterate()]
    assert {type(event) for event in events if event.identifier == "late"} == {Started, Prefill}
    assert [type(event) for event in events if event.identifier == "decoding"] == [Chunk] * 5
    late.is_ready = True
    events = [event for _ in range(8) for event in backend.iterate() if event.identifier == "late"]
    assert sum(isinstance(event, Chunk) for event in events) == 3


@pytest.mark.parametrize("num_tokens", [30, 300])
def test_a_prompt_is_computed_beside_its_rule_where_nobody_decodes(started, num_tokens):
    backend, _ = started(False, num_tokens)
    events = backend.iterate()
    [prefill] = [event for event in events if isinstance(event, Prefill)]
    assert prefill.done_tokens == prefill.total_tokens == num_tokens - 1
