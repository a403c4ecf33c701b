"""TextStream over any source: what it cancels, and what a caller gets behind an error."""

import gc
import threading

import pytest

from switchyard import engine
from switchyard.app.host.text_stream import Ending, Result, TextStream


class Source:
    """Reads what it is given, an error is raised."""

    def __init__(self, *reads):
        self.reads = list(reads)
        self.ends = []

    def read(self):
        read = self.reads.pop(0)
        if isinstance(read, BaseException):
            raise read
        return read

    def close(self):
        self.ends.append("closed")

    def drop(self):
        self.ends.append("dropped")


END = Ending("stop", 3, 2)


@pytest.mark.parametrize("error", [engine.Closed("lost"), KeyboardInterrupt(), SystemExit(1)])
def test_an_error_amid_the_text_cancels_the_rest(error):
    source = Source((["a"], None), error)
    stream = TextStream(source)
    assert next(stream) == "a"
    with pytest.raises(type(error)):
        next(stream)
    assert list(stream) == [] and stream.result is None
    del stream
    gc.collect()
    assert source.ends == ["closed"]


@pytest.mark.parametrize(
    ("reads", "pieces"),
    [
        ([(["a", "", "b"], None), ([], None), (["c"], END)], ["a", "b", "c"]),
        ([([], END)], []),
        ([(["a"], END)], ["a"]),
    ],
)
def test_a_text_that_has_ended_is_whole_and_nothing_is_left_to_cancel(reads, pieces):
    source = Source(*reads)
    stream = TextStream(source)
    got = [(piece, stream.result) for piece in stream]
    assert got == [(piece, None) for piece in pieces] and next(stream, None) is None
    assert stream.result == Result("".join(pieces), "stop", 3, 2)
    assert source.ends == ["closed"]


@pytest.mark.parametrize("pieces", [["a"], ["a", "b", "c"]])
@pytest.mark.parametrize("end", ["closed", "dropped"])
def test_a_stream_that_is_closed_or_dropped_says_no_more_and_has_no_result(pieces, end):
    source = Source((pieces, END if end == "closed" else None))
    stream = TextStream(source)
    assert next(stream) == "a"
    if end == "closed":
        with stream:
            pass
        stream.close()
        assert list(stream) == [] and stream.result is None
    del stream
    gc.collect()
    assert source.ends == [end]


class HeldSource(Source):
    """Whose second read waits until it is dropped, and then fails."""

    def __init__(self):
        super().__init__((["a"], None), engine.Closed("lost"))
        self.inside, self.dropped = threading.Event(), threading.Event()

    def read(self):
        if len(self.reads) == 1:
            self.inside.set()
            assert self.dropped.wait(20)
        return super().read()

    def drop(self):
        super().drop()
        self.dropped.set()


def test_another_thread_ends_the_wait_for_a_piece_without_waiting_itself():
    source = HeldSource()
    stream = TextStream(source)
    taken = []
    reader = threading.Thread(target=lambda: taken.append(list(stream)))
    reader.start()
    assert source.inside.wait(20)
    stream.close()
    reader.join(20)
    assert taken == [["a"]] and stream.result is None
    assert source.ends == ["dropped"]
