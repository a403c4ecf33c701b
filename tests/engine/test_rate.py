import pytest

from switchyard.engine.schedule.rate import MEMORY, CompletionRate


def rate_of(*times):
    rate = CompletionRate()
    rate.resume(100.0)
    for time in times:
        rate.note(100.0 + time)
    return rate


def test_jobs_that_end_steadily_give_their_rate():
    rate = rate_of(*(0.5 * i for i in range(1, 400)))
    assert rate.seconds(10, 300.0) == pytest.approx(5.0, rel=0.02)


def test_a_few_seconds_of_history_are_not_taken_for_slowness():
    assert rate_of(1, 2, 3, 4).seconds(8, 104.0) == pytest.approx(8.0, rel=0.1)


def test_a_new_pace_is_followed():
    rate = rate_of(*(0.1 * i for i in range(1, 500)))
    for i in range(120):
        rate.note(150.0 + 2 * i)
    assert rate.seconds(1, 388.0) == pytest.approx(2.0, rel=0.05)


def test_idle_time_does_not_count():
    rate = rate_of(1, 2, 3, 4, 5, 6)
    rate.resume(100_000.0)
    assert rate.seconds(6, 100_000.0) == pytest.approx(6.0, rel=0.1)


def test_while_nothing_has_ended_the_guess_grows_with_the_wait():
    rate = rate_of()
    assert rate.seconds(5, 100.0) == 0
    assert rate.seconds(5, 102.0) == pytest.approx(2.0, rel=0.1)
    assert rate.seconds(5, 1000.0) == pytest.approx(MEMORY)


def test_what_has_stopped_ending_takes_ever_longer():
    rate = rate_of(1, 2, 3)
    assert rate.seconds(1, 400.0) > 120
