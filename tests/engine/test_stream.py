"""The request thread's end of its jobs, alone."""

import pytest

from switchyard.engine.messages import Chunk, Finished
from switchyard.engine.stream import Stream
from tests.engine.failing import begin

TOKENS = [Chunk("a", text, (1,)) for text in "xyz"]
END = Finished("a", "stop", 1, 3, 0)


@pytest.fixture
def stream():
    return Stream(["a"], lambda identifier: None)


def test_closing_a_stream_cancels_all_of_its_choices_that_have_not_ended():
    cancelled = []
    stream = Stream(["a", "b", "c"], cancelled.append)
    stream.put([END])
    stream.take(20)
    stream.close()
    assert sorted(cancelled) == ["b", "c"]


def test_a_stream_that_is_closed_keeps_no_event(stream):
    stream.close()
    stream.close()
    stream.put([*TOKENS, END])
    assert not stream.has_events


def test_the_end_wakes_who_waits_patiently_also_beside_a_token(stream):
    stream.is_patient = True
    taken = []
    thread = begin(lambda: taken.append(stream.take(60)))
    stream.put(TOKENS[:1])  # which alone wakes nobody
    stream.put([TOKENS[1], END])
    thread.join(10)
    is_woken = not thread.is_alive()
    stream.is_patient = False
    stream.put([])  # else the test itself would wait
    thread.join()
    assert is_woken
    assert taken[0][-1] == END


def test_a_reader_is_as_far_behind_as_tokens_wait(stream):
    stream.put([Chunk("a", "xyz", (1, 2, 3))])
    stream.put([Chunk("a", "z", (4,)), END])
    assert stream.num_behind == 4
    stream.take(20)
    assert stream.num_behind == 0


@pytest.mark.parametrize("take", ["take", "take_now"])
def test_all_that_has_piled_up_is_taken_at_once_the_end_included(stream, take):
    if take == "take_now":
        stream.poll(lambda: None, alone=True)
    for events in ((TOKENS[0],), (TOKENS[1],), (TOKENS[2], END)):
        stream.put(events)
    assert list(getattr(stream, take)()) == [*TOKENS, END]
    assert stream.is_finished
    assert not getattr(stream, take)()


def test_a_stream_goes_on_until_the_last_of_its_choices_ends():
    stream = Stream(["a", "b"], lambda identifier: None)
    stream.put([END])
    assert stream.take(20) == [END] and not stream.is_finished
    last = Finished("b", "stop", 1, 3, 0)
    stream.put([last])
    assert stream.take(20) == [last] and stream.is_finished
