"""What jobs have used, as the application's accounts are told."""

import threading

import pytest

from switchyard.engine.messages import Chunk, Failed, Finished, Prefill, Started, Timings
from tests.engine.conftest import over_all_links
from tests.engine.reading import take_all
from tests.scripted import ScriptedBackend, count, endless, finished, job


def looked_up(job):
    yield Started(job.identifier)
    yield Prefill(job.identifier, 2, 3, 1)
    yield Prefill(job.identifier, 3, 3, 1)
    yield Chunk(job.identifier, "x", (0,))
    yield Finished(job.identifier, "stop", 3, 1, 1)


class Account:
    """Told by `on_use`; `wait` for a job's end."""

    def __init__(self):
        self.told = []
        self.ended = threading.Event()

    def __call__(self, used):
        self.told.append(used)
        if used.reason is not None:
            self.ended.set()

    def wait(self):
        assert self.ended.wait(20)
        return [(u.computed_tokens, u.cached_tokens, u.new_tokens, u.reason) for u in self.told]


@pytest.fixture
def account():
    return Account()


def test_the_prompt_is_told_once_and_all_at_the_end(make_engine, account):
    model = make_engine(ScriptedBackend(looked_up))
    take_all(model.submit([job()], on_use=account))
    assert account.wait() == [(2, 1, 0, None), (2, 1, 1, "stop")]
    assert account.told[0].prompt_tokens == 3
    assert isinstance(account.told[1].timings, Timings)


@pytest.mark.parametrize(("ends", "computed"), [("cancelled", 3), ("failed", 0)])
def test_a_job_that_is_closed_or_whose_engine_stops_is_told_all_the_same(
    make_engine, account, ends, computed
):
    model = make_engine(ScriptedBackend(endless))
    stream = model.submit([job()], on_use=account)
    while not any(isinstance(event, Chunk) for event in stream.take(20)):
        pass
    stream.close() if ends == "cancelled" else model.close(timeout=20)
    *told, new_tokens, reason = account.wait()[-1]
    assert (*told, reason) == (computed, 0, ends) and new_tokens >= 1


def test_a_job_that_never_started_has_computed_nothing(make_engine, account, gate):
    model = make_engine(ScriptedBackend(gate=gate, max_active=1))
    first = model.submit([job("a")])
    gate.wait_until_held()
    model.submit([job("b")], on_use=account).close()
    gate.open()
    assert account.wait() == [(0, 0, 0, "cancelled")]
    first.close()


def test_a_job_that_ends_before_its_lookup_is_told_has_computed_its_prompt(make_engine, account):
    def short(job):
        yield Started(job.identifier)
        yield Finished(job.identifier, "cancelled", 3, 0, 1)

    make_engine(ScriptedBackend(short)).submit([job()], on_use=account)
    assert account.wait() == [(2, 1, 0, "cancelled")]


def test_a_job_that_fails_is_told_with_what_it_had(make_engine, account):
    def failing(job):
        yield Prefill(job.identifier, 3, 3, 1)
        yield Chunk(job.identifier, "x", (0, 1))
        yield Failed(job.identifier, RuntimeError("broken"))

    model = make_engine(ScriptedBackend(failing))
    model.submit([job()], on_use=account)
    assert account.wait()[-1] == (2, 1, 2, "failed")


def test_a_job_that_is_put_back_pays_for_its_prompt_once(make_engine, account):
    def once_broken(job):
        yield Started(job.identifier)
        yield Prefill(job.identifier, 3, 3, 0)
        if backend.iterate_errors is not None and not backend.recoveries:
            raise RuntimeError("broken")
        yield finished(job, 0)

    backend = ScriptedBackend(once_broken)
    model = make_engine(backend)
    model.submit([job()], on_use=account)
    assert account.wait() == [(3, 0, 0, None), (3, 0, 0, "length")]


@over_all_links
def test_a_job_that_may_have_no_more_tokens_ends_with_its_length(make_engine):
    told = []

    def allow(used):
        told.append(used.new_tokens)
        return 5 if used.new_tokens < 5 else 8

    events = take_all(make_engine(ScriptedBackend(endless)).submit([job("a", 500)], on_use=allow))
    assert (events[-1].finish_reason, events[-1].stop_reason) == ("length", "quota")
    assert told[:3] == [1, 5, 8] and len(told) == 4
    assert 8 <= told[-1] == events[-1].new_tokens


def test_a_job_knows_how_long_its_clients_answers_of_its_kind_usually_are(make_engine):
    backend = ScriptedBackend()
    model = make_engine(backend)
    mine = {"client": "me", "kind": "Chat"}
    for i, more in enumerate(({}, {}, {"client": "you"}, {"kind": "Completion"})):
        take_all(model.submit([job(f"job{i}", 20, **mine | more)]))
    assert [one.usual_tokens for one in backend.enqueued] == [180, 160, 180, 180]
    assert backend.enqueued[0].expected_tokens == 20


def test_a_cancelled_answer_is_not_a_usual_one(make_engine):
    backend = ScriptedBackend(lambda one: (endless if one.identifier == "a" else count)(one))
    model = make_engine(backend)
    stream = model.submit([job("a", 99)])
    model.cancel("a")
    take_all(stream)
    take_all(model.submit([job("b")]))
    assert backend.enqueued[-1].usual_tokens == 180
