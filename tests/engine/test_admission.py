"""Jobs that an engine takes or refuses, and their order."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from switchyard import engine
from switchyard.engine.config import ModelConfig
from switchyard.engine.held import Backlog
from switchyard.engine.job import Constraint, Healing
from switchyard.engine.messages import ModelInfo
from switchyard.engine.sampling import Sampling
from switchyard.engine.schedule import admission
from tests.engine.conftest import over_all_links
from tests.engine.failing import let_through, names
from tests.engine.reading import take_all, text
from tests.scripted import Gate, ScriptedBackend, count, endless, job


def test_a_full_engine_refuses_and_takes_jobs_again_once_one_ends(make_engine, gate):
    model = make_engine(ScriptedBackend(gate=gate), max_batch_size=1, max_pending=1)
    streams = [model.submit([job("a", 1)]), model.submit([job("b", 1)])]
    with pytest.raises(engine.Full, match="the queue is full: 2 of 2 jobs are active or waiting"):
        model.submit([job("c", 1)])
    with pytest.raises(engine.Full):
        model.check_room(1)
    gate.open()
    for stream in streams:
        take_all(stream)
    take_all(model.submit([job("c", 1)]))


def test_waiting_prompt_tokens_are_bounded_before_and_after_tokenizing(make_engine, gate):
    model = make_engine(ScriptedBackend(gate=gate, max_active=1), max_pending_tokens=10)
    streams = [model.submit([job("a", 1, prompt=(1,) * 50)])]  # nothing waits
    gate.wait_until_held()
    let_through(gate)
    streams.append(model.submit([job("b", 1, prompt=(1,) * 6)]))
    with pytest.raises(engine.Full, match="the queue is full: 6 of 10 prompt tokens are waiting"):
        model.check_room(1, 5)
    with pytest.raises(engine.Full):
        model.submit([job("c", 1, prompt=(1,) * 2), job("d", 1, prompt=(1,) * 3)])
    streams.append(model.submit([job("c", 1, prompt=(1,) * 4)]))
    gate.open()
    for stream in streams:
        take_all(stream)


@pytest.mark.parametrize(("pace", "seconds"), [(0.01, 1.0), (2.0, 10.0), (100.0, 120.0)])
def test_a_full_engine_tells_how_long_its_queue_takes(make_engine, clock, pace, seconds, gate):
    clock = clock("engine", "held")
    model = make_engine(ScriptedBackend(gate=gate, max_active=1), max_batch_size=1, max_pending=4)
    for i in range(40):  # a job every `pace` seconds
        stream = model.submit([job(f"before{i}", 1)])
        clock.now += pace
        gate.step(3)
        take_all(stream)
    clock.now += 1000.0  # idle
    streams = [model.submit([job("active", 1)])]
    for _ in range(40 * 3 + 1):
        gate.wait_until_held()
    let_through(gate)
    streams += [model.submit([job(f"job{i}", 1)]) for i in range(4)]
    with pytest.raises(engine.Full) as caught:
        model.check_room(1)
    assert caught.value.retry_after == pytest.approx(seconds, rel=0.1)
    gate.open()
    for stream in streams:
        take_all(stream)


def test_a_request_of_several_jobs_is_taken_whole_or_not_at_all(make_engine, gate):
    backend = ScriptedBackend(gate=gate)
    model = make_engine(backend, max_batch_size=1, max_pending=2)
    stream = model.submit([job("a", 1)])
    with pytest.raises(engine.Full):
        model.submit([job("b"), job("c"), job("d")])
    assert model.num_jobs == 1
    gate.open()
    take_all(stream)
    assert [j.identifier for j in backend.enqueued] == ["a"]


def test_a_job_that_never_has_room_ends_before_others_start(make_engine, gate):
    def script(job):
        seen.append((job.identifier, big.has_events if big else None))
        return count(job)

    big, seen, backend = None, [], ScriptedBackend(script, gate)
    backend.has_room = lambda job: not backend.active and job.identifier != "big"
    model = make_engine(backend)
    first = model.submit([job("first")])
    gate.wait_until_held()
    big, small = model.submit([job("big")]), model.submit([job("small", 4)])
    gate.open()
    assert text(take_all(first)) == "0 1 2 " and text(take_all(small)) == "0 1 2 3 "
    [end] = take_all(big)
    assert "does not fit even into an empty generator" in str(end.error)
    assert seen == [("first", None), ("small", True)]


def started(make_engine, jobs, has_room=lambda active, job: not active):
    """The order in which `jobs`, which all wait, start."""
    gate = Gate()
    backend = ScriptedBackend(gate=gate)
    model = make_engine(backend, max_priority=1)
    model.submit([job("first", 1)])
    gate.wait_until_held()
    backend.has_room = lambda job: has_room(backend.active, job)
    streams = [model.submit([one]) for one in jobs]
    gate.open()
    for stream in streams:
        take_all(stream)
    return [j.identifier for j in backend.enqueued[1:]]


def test_waiting_jobs_start_by_priority_then_share_then_length(make_engine):
    jobs = [
        job("long", 30, client="x"),
        job("short", 10, client="x"),
        job("other", 40, client="y"),
        job("urgent", 50, client="x", priority=1),
        job("background", 50, client="z", priority=-1),
    ]
    expected = ["urgent", "short", "other", "long", "background"]
    assert started(make_engine, jobs) == expected


def test_a_smaller_job_starts_while_the_best_one_has_no_room(make_engine):
    def has_room(active, job):
        return not active or job.identifier == "small"

    jobs = [job("big", 90, priority=1), job("small", 10)]
    assert started(make_engine, jobs, has_room) == ["small", "big"]


def test_a_job_that_the_backend_rejects_fails_alone(make_engine):
    backend = ScriptedBackend()
    backend.enqueue_error = engine.InvalidJob("not like this", "seed")
    model = make_engine(backend)
    [event] = take_all(model.submit([job("a")]))
    assert isinstance(event.error, engine.InvalidJob) and event.error.param == "seed"
    backend.enqueue_error = None
    assert text(take_all(model.submit([job("b", 1)]))) == "0 "


@over_all_links
def test_a_job_that_never_gets_room_fails_instead_of_waiting_for_ever(make_engine):
    [event] = take_all(make_engine(ScriptedBackend(max_active=0)).submit([job("a")]))
    assert isinstance(event.error, engine.JobFailed)


def test_an_identifier_that_is_in_use_is_rejected(make_engine):
    model = make_engine(ScriptedBackend(endless))
    model.submit([job("a")])
    with pytest.raises(engine.InvalidJob, match="identifier a is in use"):
        model.submit([job("b"), job("a")])
    assert model.num_jobs == 1


def test_a_delivery_ends_while_many_threads_are_refused(make_engine):
    """Refusals take no lock of the engine: its thread would wait for each of them."""
    gate, refused = Gate(), []
    model = make_engine(ScriptedBackend(endless, gate), max_batch_size=1, max_pending=0)

    def ask(i):
        for way in (lambda: model.check_room(1), lambda: model.submit([job(f"job{i}")])):
            with pytest.raises(engine.Full, match="1 of 1 jobs are active or waiting"):
                way()
        refused.append(i)

    def amid_a_delivery(used):  # called by `deliver`, under its lock
        if seen:
            return
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=10)
        seen.append(len(refused))

    seen: list[int] = []
    stream = model.submit([job("a", 8)], on_use=amid_a_delivery)
    gate.open()
    while not seen:
        stream.take()
    stream.close()
    assert seen[0] == 100


def test_an_engine_checks_what_it_is_asked_for(make_engine):
    backend = ScriptedBackend()
    model = make_engine(backend, max_batch_size=2, max_pending=1, default_max_tokens=100)
    assert model.max_new_tokens(10, None) == 100
    model.check_room(3)
    with pytest.raises(engine.InvalidJob, match="4 choices exceed the 3 jobs", check=names("n")):
        model.check_room(4)
    with pytest.raises(engine.PromptTooLong, match=r"3 prompt tokens and 2046 new .* 2048"):
        model.submit([job(max_new_tokens=2046)])
    assert not backend.enqueued


# The rules alone


INFO = ModelInfo(2048, 4096, 256, 64, "scripted")
CONFIG = ModelConfig("m", "m", max_priority=5)
TOKENS = ((0,), (4095,)), ((-1,), (1, 4096))


@pytest.mark.parametrize(
    ("name", "taken", "refused"),
    [
        ("num_logprobs", (0, 4096), (-1, 4097)),
        ("prompt_logprobs", (0, 4096), (-1, 4097)),
        ("priority", (-9, 5), (6,)),
        ("min_new_tokens", (0, 3), (4,)),
        ("max_new_tokens", (1, 2045), (0,)),
        ("prompt", TOKENS[0], (*TOKENS[1], ())),
        *((name, *TOKENS) for name in ("negative_prompt", "stop_token_ids")),
        *((name, *TOKENS) for name in ("banned_token_ids", "allowed_token_ids", "logit_bias")),
    ],
)
def test_the_most_is_taken_and_one_more_is_not(name, taken, refused):
    def of(value):
        if name == "logit_bias":
            value = [(token_id, 1.0) for token_id in value]
        is_sampled = name in ("banned_token_ids", "allowed_token_ids", "logit_bias")
        return job(**{"sampling": Sampling(**{name: value})} if is_sampled else {name: value})

    for value in taken:
        admission.check(of(value), INFO, CONFIG)
    for value in refused:
        with pytest.raises(engine.InvalidJob, check=names(name)):
            admission.check(of(value), INFO, CONFIG)


@pytest.mark.parametrize(
    ("length", "asked", "expected"),  # new tokens, or the parameter that could be smaller
    [
        *((10, None, 100), (10, 500, 500), (2000, None, 48)),
        *((2000, 49, "max_new_tokens"), (2047, 2, "max_new_tokens")),
        *((2048, 1, "prompt"), (2048, 2, "prompt"), (2048, None, "prompt"), (9000, None, "prompt")),
    ],
)
def test_new_tokens_are_those_asked_for_or_the_usual_number_where_they_fit(length, asked, expected):
    config = ModelConfig("m", "m", default_max_tokens=100)
    if isinstance(expected, int):
        assert admission.max_new_tokens(length, asked, INFO, config) == expected
        return
    with pytest.raises(engine.PromptTooLong, check=names(expected)):
        admission.max_new_tokens(length, asked, INFO, config)


def test_a_small_cache_and_the_last_guesses_leave_less_than_the_context():
    info = replace(INFO, num_pages=4, num_draft_tokens=5)
    assert admission.max_new_tokens(1000, None, info, CONFIG) == 19
    admission.check(job(prompt=(1,) * 1000, max_new_tokens=19), info, CONFIG)
    told = "1000 prompt .* 40 new .* 2048 .* cache of 4 pages of 256 tokens, less 5 for guesses"
    with pytest.raises(engine.PromptTooLong, match=told) as caught:
        admission.check(job(prompt=(1,) * 1000, max_new_tokens=40), info, CONFIG)
    error = caught.value
    numbers = error.prompt_tokens, error.new_tokens, error.limit
    assert (numbers, error.is_whole) == ((1000, 40, 1019), True)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (engine.PromptTooLong, {"negative_prompt": (1,) * 2046}),
        (engine.InvalidJob, {"negative_prompt": (1,) * 2045, "prompt": (1,) * 2045}),  # together
        (engine.InvalidJob, {"negative_prompt": (1,), "prompt_logprobs": 0}),
    ],
    ids=["long", "pages", "scored"],
)
def test_what_is_wrong_with_a_negative_prompt_is_its_own_fault(kind, wrong):
    with pytest.raises(kind, check=names("negative_prompt")):
        admission.check(job(**wrong), replace(INFO, num_pages=15), CONFIG)


def test_a_pair_takes_two_places_of_the_batch():
    pair = job(negative_prompt=(1,))
    admission.check(pair, INFO, ModelConfig("m", "m", max_batch_size=2))
    with pytest.raises(engine.InvalidJob, match="2 of 1 places in the batch"):
        admission.check(pair, INFO, ModelConfig("m", "m", max_batch_size=1))


HEALED, FORMED = {"healing": Healing("a", (1,))}, {"constraint": Constraint("x")}


@pytest.mark.parametrize(
    ("taken", "more", "param"),
    [
        ({"max_new_tokens": 0, "prompt_logprobs": 0}, {"prompt_logprobs": None}, "max_new_tokens"),
        (HEALED, {"num_logprobs": 0}, "healing"),
        (HEALED, {"prompt_logprobs": 0}, "healing"),
        (FORMED, HEALED, "healing"),
        (FORMED, {"ignore_eos": True}, "ignore_eos"),
        ({**FORMED, "min_new_tokens": 0}, {"min_new_tokens": 1}, "min_new_tokens"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else value,
)
def test_what_does_not_go_together_is_named(taken, more, param):
    admission.check(job(**taken), INFO, CONFIG)
    with pytest.raises(engine.InvalidJob, check=names(param)):
        admission.check(job(**taken | more), INFO, CONFIG)


@pytest.mark.parametrize(
    ("state", "error", "refused"),
    [
        ("loading", None, engine.Loading("model m is loading", 5.0)),
        ("draining", None, engine.Draining("model m is shutting down", 10.0)),
        ("hanging", ValueError("x"), engine.Stalled("model m: x", 10.0)),
        ("stopped", None, engine.Dead("model m: the server has shut down", 10.0)),
    ],
)
def test_each_refusal_says_why_and_when_to_come_again(state, error, refused):
    stands = SimpleNamespace(state=state, error=error, max_jobs=lambda config: 1)
    told = admission.refusal(stands, Backlog(), None, CONFIG, 0.0)
    assert (repr(told), told.retry_after) == (repr(refused), refused.retry_after)


@pytest.mark.parametrize(
    ("phase", "state", "kind"),
    [
        ("pending", "loading", engine.Loading),
        ("pending", "hanging", engine.Stalled),
        ("pending", "stopped", engine.Dead),
        ("prefill", "hanging", engine.BatchFailed),
        ("decode", "loading", engine.BatchFailed),
        ("decode", "stopped", engine.BatchFailed),
    ],
)
def test_only_a_job_that_never_began_may_be_tried_elsewhere(phase, state, kind):
    error = admission.end(phase, state, engine.BatchFailed("it was killed"), "m")
    assert type(error) is kind
    assert isinstance(error, engine.Loading) or "it was killed" in str(error)
    assert type(admission.end(phase, state, None, "m")) is engine.Closed
