"""The same application under each server: answers, streams, clients that leave."""

import time

import pytest
import requests

from tests.conftest import wait_for
from tests.hosts.conftest import COMMANDS, ENDLESS, measured

pytestmark = pytest.mark.hosts

HELLO = {"messages": [{"role": "user", "content": "Hello!"}], "temperature": 0}
ANSWER = "Hi! How can I help you today?"
WITH_OWN_MODEL = ("gthread", "waitress", "uwsgi, 1 process", "flask run")  # one process each
WAYS = [
    *((name, True) for name in COMMANDS if "1 process" not in name and "1 worker" not in name),
    *((name, False) for name in WITH_OWN_MODEL),
]


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[0]}, {'client mode' if way[1] else 'own'}")
def host(request, start):
    host = start(*request.param)
    host.name = request.node.callspec.id
    return host


def pieces_of(response):
    """As they come, whatever frames them."""
    while piece := response.raw.read1(65536):
        yield piece.decode()


def seconds_until_cancelled(host, before):
    begin = time.monotonic()
    wait_for(lambda: not host.jobs() and host.num_cancelled() == before + 1)
    return time.monotonic() - begin


def leave_amid_a_stream(host):
    before = host.num_cancelled()
    with host.post("/stream", ENDLESS, stream=True) as response:
        assert next(pieces_of(response))
        assert len(host.jobs()) == 1
    return seconds_until_cancelled(host, before)


def leave_before_an_answer(host):
    before = host.num_cancelled()
    with pytest.raises(requests.ReadTimeout):
        requests.post(f"{host.url}/text", json=ENDLESS, timeout=0.3)
    return seconds_until_cancelled(host, before)


def test_an_application_has_its_answers(host):
    assert host.post("/text", HELLO).text.startswith(ANSWER)
    assert host.post("/stream", HELLO).text.startswith(ANSWER)
    url, before = f"{host.url}/llm/v1", host.num_cancelled()
    chat, endless = {**HELLO, "stream": True}, {**ENDLESS, "stream": True}
    events = requests.post(f"{url}/chat/completions", json=chat, timeout=60).text
    assert events.count("data: ") > 3 and events.endswith("data: [DONE]\n\n")
    with requests.post(f"{url}/completions", json=endless, stream=True, timeout=60) as response:
        assert next(pieces_of(response))
        assert len(host.jobs()) == 1  # it comes as it is made
    seconds_until_cancelled(host, before)
    streamed = leave_amid_a_stream(host)
    whole = leave_before_an_answer(host)
    measured.append(
        f"{host.name}: cancelled {streamed:.2f} s after its client left a stream,"
        f" {whole:.2f} s a whole answer"
    )
    assert host.post("/text", HELLO).text.startswith(ANSWER)
