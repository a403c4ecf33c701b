"""When a client is sent what, by the clock of the thread that writes to it."""

import types

import pytest

from switchyard.app.delivery.output import NEWS, PROBE, Output

BEAT = b": heartbeat\n\n"


class Frames:
    """A transcript's place; `new` are the frames that come next."""

    def __init__(self):
        self.writer = types.SimpleNamespace(heartbeat=BEAT, comment=b"")
        self.new = []
        self.is_over = False

    def is_read(self, position):
        return self.is_over and not self.new

    def take_now(self, position, now):
        taken, self.new = self.new, []
        return taken


@pytest.fixture
def frames():
    return Frames()


def output_of(frames, heartbeat, is_half_closed=False):
    return Output(frames, types.SimpleNamespace(is_half_closed=is_half_closed), heartbeat)


def turn(output, frames, now, *new):
    """What the sender writes at `now`, when these frames have come."""
    frames.new = list(new)
    return output.take_now(now) or output.take(now)


def test_a_heartbeat_comes_once_nothing_else_has_for_so_long(frames):
    output = output_of(frames, 10)
    assert turn(output, frames, 100, b"a") == b"a"
    assert turn(output, frames, 109) is None
    assert turn(output, frames, 110) == BEAT
    assert turn(output, frames, 119, b"b") == b"b"
    assert turn(output, frames, 120) is None
    assert turn(output, frames, 128) is None
    assert turn(output, frames, 129) == BEAT
    assert turn(output, frames, 138) is None


def test_no_heartbeat_comes_behind_the_last_frame(frames):
    """A slow client takes that long after it was written."""
    output = output_of(frames, 10)
    frames.is_over = True
    assert turn(output, frames, 100, b"a") == b"a"
    assert turn(output, frames, 120) is None


def test_frames_that_have_piled_up_are_one_write(frames):
    assert turn(output_of(frames, 10), frames, 100, b"a", b"b", b"c") == b"abc"


def test_a_client_that_may_have_left_is_written_to_all_the_time(frames):
    output = output_of(frames, 10, is_half_closed=True)
    assert turn(output, frames, 100, b"a") == b"a"
    assert turn(output, frames, 100 + PROBE / 2) is None
    assert turn(output, frames, 100 + 2 * PROBE) == BEAT


def test_news_of_a_prompt_is_told_at_once_and_once(frames):
    output = output_of(frames, 10)
    frames.writer.comment = b": queued 2\n\n"
    assert [turn(output, frames, now) for now in (100, 101)] == [b": queued 2\n\n", None]
    frames.writer.comment = b": queued 1\n\n"
    assert [turn(output, frames, now) for now in (102, 103)] == [b": queued 1\n\n", None]
    assert turn(output, frames, 112) == b": queued 1\n\n"  # in a heartbeat's place
    frames.writer.comment = b""
    assert turn(output, frames, 122) == BEAT


@pytest.mark.parametrize(("is_half_closed", "seconds"), [(False, 10 / NEWS), (True, PROBE)])
def test_who_writes_looks_for_news_in_between_and_often_at_a_client_that_may_have_left(
    frames, is_half_closed, seconds
):
    assert output_of(frames, 10, is_half_closed).patience == seconds
