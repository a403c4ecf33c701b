"""Many requests at once with one Idempotency-Key."""

import pytest

from tests.app.test_idempotency import ASKED, KEY, wait_for_readers
from tests.scripted import ScriptedBackend

pytestmark = pytest.mark.both_ways


def test_thirty_that_come_at_once_get_one_answer(make_client, ask, gate):
    client = make_client(ScriptedBackend(gate=gate))
    first, *others = [ask(client, ASKED, headers=KEY) for _ in range(30)]
    wait_for_readers(client, 30)
    gate.open()
    answer = first.get(timeout=20)
    assert answer.status_code == 200
    assert {other.get(timeout=20).data for other in others} == {answer.data}
    assert len(client.backend.enqueued) == 1


def test_repetitions_leave_the_threads_that_jobs_need(make_client, ask, gate):
    client = make_client(
        ScriptedBackend(gate=gate), max_batch_size=1, max_pending=2, reserve_threads=2
    )
    answers = [ask(client, ASKED, headers=KEY)]
    for num_readers in (1, 2, 3):
        wait_for_readers(client, num_readers)
        answers.append(ask(client, ASKED, headers=KEY))
    *answers, refused = answers
    assert refused.get(timeout=20).status_code == 429
    gate.open()
    assert [answer.get(timeout=20).status_code for answer in answers] == [200] * 3
