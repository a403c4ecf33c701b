"""Streams of one server, a number at a time, and whether each token of their texts is right."""

import collections
import http.client
import io
import itertools
import json
import threading
import time

from benchmarks.client import Client
from tests.nodes.engine import text_of

STREAMS = 18  # at a time: two such loads are more than three engines have places for
TOKENS = 80
NAMES = 4000  # of jobs: numbers of tokens


class Load(threading.Thread):
    """Begins streams until it is ended, then waits for those that have begun."""

    def __init__(self, url, first, num_streams=STREAMS):
        """`first`: number of the first stream, so that those of several loads differ."""
        super().__init__(name=f"load of {url}")
        self.readings = []
        self.began = 0.0  # by time.perf_counter
        self._client = Client(url, "/v1/completions", timeout=120)
        self._first = first
        self._num_streams = num_streams
        self._is_over = threading.Event()
        self.start()

    def run(self):
        bodies = itertools.takewhile(lambda _: not self._is_over.is_set(), self._bodies())
        self.began = time.perf_counter()
        for reading in self._client.post(bodies, self._num_streams):
            self.readings.append(reading)

    def _bodies(self):
        for i in itertools.count(self._first):
            prompt = [i % NAMES + 1]
            yield {"prompt": prompt, "max_tokens": TOKENS, "stream": True, "ignore_eos": True}

    def end(self):
        self._is_over.set()
        self.join()


def verdict(reading):
    """`whole`; `told`: it ended with an error after right text; `lost`: it ended otherwise without
    its whole text; `wrong`: it has a token of another.
    """
    [prompt] = reading.body["prompt"]
    wanted, text = text_of(prompt, TOKENS), text_in(reading.data)
    if not wanted.startswith(text):
        return "wrong"
    if not reading.fault:
        return "whole" if text == wanted else "wrong"
    return "told" if text and reading.fault == "an error event" else "lost"


def count(loads):
    return collections.Counter(verdict(one) for load in loads for one in load.readings)


class _Received:
    """A socket for http.client, whose bytes have come."""

    def __init__(self, data):
        self.makefile = lambda _: io.BytesIO(data)


def text_in(data):
    """The text of a stream, also if it was cut."""
    response = http.client.HTTPResponse(_Received(data))
    try:
        response.begin()
        body = response.read()
    except http.client.IncompleteRead as cut:
        body = cut.partial
    except http.client.HTTPException:
        return ""
    frames = [line[6:] for line in body.split(b"\n") if line.startswith(b'data: {"')]
    choices = [json.loads(frame).get("choices", ()) for frame in frames]
    return "".join(one["text"] for some in choices for one in some)
