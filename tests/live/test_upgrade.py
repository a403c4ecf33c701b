"""A new server in the place of an old one, under load: no request is lost."""

import concurrent.futures
import contextlib
import json
import re
import threading
import time

import requests

from tests.conftest import wait_for
from tests.faults.conftest import SCRIPTED
from tests.live.conftest import Server

NUM_CLIENTS = 32
TOKENS = 40  # of 10 ms each
WAIT = 60.0  # seconds that a client waits for a server


class AskingClient:
    """Asks one request after the other, streams and others, until it is told to stop. It does what
    clients' libraries do: where no connection comes about, or the answer is a 503, it asks again.
    """

    def __init__(self, url, number):
        self.url = url
        self.is_streamed = number % 2 == 0
        self.may_stop = threading.Event()
        self.answered = []  # by which server, by its version of the model's name
        self.lost = []
        self.num_retries = 0

    def run(self):
        with requests.Session() as session:
            while not self.may_stop.is_set():
                try:
                    self.answered.append(self._ask(session))
                except Exception as error:
                    self.lost.append(repr(error))

    def _ask(self, session):
        body = {"prompt": "x", "max_tokens": TOKENS, "stream": self.is_streamed}
        deadline = time.monotonic() + WAIT
        while True:
            try:
                answer = session.post(
                    f"{self.url}/v1/completions", json=body, timeout=WAIT, stream=True
                )
            except requests.ConnectionError:
                pass  # before any of an answer
            else:
                if answer.status_code != 503:
                    return self._read(answer)
                assert int(answer.headers["Retry-After"]) > 0
                answer.close()
            assert time.monotonic() < deadline, "no server answers"
            self.num_retries += 1
            time.sleep(0.05)

    def _read(self, answer):
        """The model's name. All of the text must be there."""
        assert answer.status_code == 200, answer.text
        frames = [answer.text]
        if self.is_streamed:
            frames = re.findall(r"data: (\{.*\})\n", answer.text)
            assert answer.text.endswith("data: [DONE]\n\n"), answer.text[-200:]
        bodies = [json.loads(frame) for frame in frames]
        text = "".join(body["choices"][0]["text"] for body in bodies)
        assert text.split() == [str(i) for i in range(TOKENS)]
        return bodies[0]["model"]


@contextlib.contextmanager
def asking(url):
    """Clients that ask, meanwhile."""
    clients = [AskingClient(url, number) for number in range(NUM_CLIENTS)]
    with concurrent.futures.ThreadPoolExecutor(NUM_CLIENTS) as pool:
        for client in clients:
            pool.submit(client.run)
        try:
            yield clients
        finally:
            for client in clients:
                client.may_stop.set()


def test_a_new_server_takes_the_place_of_one_that_ends_under_load(start, tmp_path, model_path):
    settings = dict(model=model_path, max_batch_size=NUM_CLIENTS)
    old = start(SCRIPTED, name="old", **settings).wait_until_ready()
    (tmp_path / "new").mkdir()
    new = Server(SCRIPTED, tmp_path / "new", old.port, name="new", bind_wait=60, **settings)
    try:
        with asking(old.url) as clients:
            wait_for(lambda: all("old" in client.answered for client in clients))
            new.wait_to_say(f"127.0.0.1:{old.port} is taken: waiting up to 60 s")
            counts = [len(one.answered) for one in clients]
            wait_for(lambda: all(len(c.answered) > n for c, n in zip(clients, counts, strict=True)))
            assert old.stop() == 0, old.output
            wait_for(lambda: all("new" in client.answered for client in clients))
    finally:
        assert new.stop() == 0, new.output
    assert [client.lost for client in clients if client.lost] == []
    for client in clients:
        first = client.answered.index("new")
        assert set(client.answered[:first]) == {"old"} and set(client.answered[first:]) == {"new"}
    assert sum(client.num_retries for client in clients) > 0


def test_a_server_waits_no_longer_than_it_is_told(tmp_path, model_path, start):
    old = start(SCRIPTED).wait_until_ready()
    (tmp_path / "new").mkdir()
    new = Server(SCRIPTED, tmp_path / "new", old.port, model=model_path, bind_wait=0.3)
    assert new.process.wait(60) == 1
    assert f"127.0.0.1:{old.port} is taken by another program" in new.output
    assert old.get("/health/live").status_code == 200
