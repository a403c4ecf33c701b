"""A real gunicorn over real sockets, with the real generator."""

import concurrent.futures
import json
import pathlib
import signal
import threading
import time

import pytest

from switchyard.engine.memory.gpus import has_gpu
from tests.conftest import DEMO
from tests.faults.conftest import SCRIPTED, children_of, open_request, read_all

SENTENCE = "the quick brown fox jumps over a lazy dog while seven wizards box"
WORDS = SENTENCE.split()


def prompts(count):
    """Prompts of different lengths, some longer than a page of the cache."""
    words = [[WORDS[(i * k + k) % len(WORDS)] for k in range(5 + 2 * i)] for i in range(count)]
    return [f"{' '.join(words[i])} number {i}" for i in range(count)]


def greedy(prompt, max_tokens=24, **more):
    return {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}


def streamed_text(server, body):
    *bodies, done = map(bytes.decode, server.begin(**body))
    assert done == "[DONE]"
    return "".join(choice["text"] for body in bodies for choice in json.loads(body)["choices"])


def in_threads(call, arguments):
    """Results of `call` for each argument, all called at the same moment."""
    barrier = threading.Barrier(len(arguments))

    def run(argument):
        barrier.wait(30)
        return call(argument)

    with concurrent.futures.ThreadPoolExecutor(len(arguments)) as pool:
        return [*pool.map(run, arguments)]


@pytest.fixture
def steady_server(request):
    """Its greedy texts are the same in any company. On a GPU, where sums are rounded by how many
    rows there are, it takes a trained model for that: random weights' logits are too near.
    """
    if not has_gpu():
        return request.getfixturevalue("server")
    start = request.getfixturevalue("start")
    return start(model=DEMO, max_batch_size=64).wait_until_ready()


def test_64_clients_at_once_get_the_text_of_their_own_prompt(steady_server, pytestconfig):
    server, bodies = steady_server, [greedy(prompt, 12) for prompt in prompts(64)]
    alone = [server.post("/v1/completions", b).json()["choices"][0]["text"] for b in bodies]
    assert len(set(alone)) > 20
    for _ in range(pytestconfig.option.rounds):
        assert in_threads(lambda body: streamed_text(server, body), bodies) == alone


def exchange(server, *headers, version="1.1"):
    """Head, in lower case, and body of a streamed answer."""
    body = greedy("x", 3, stream=True)
    with open_request(server, body, headers=headers, version=version) as connection:
        head, _, rest = read_all(connection).partition(b"\r\n\r\n")
    assert b"200 ok" in head.lower()
    return head.decode().lower(), rest


def test_an_http_1_0_client_gets_a_body_that_the_end_of_the_connection_delimits(server):
    head, body = exchange(server, version="1.0")
    assert "transfer-encoding" not in head and "content-length" not in head
    assert body.startswith(b"data: {") and body.endswith(b"data: [DONE]\n\n")


def test_an_http_1_1_client_gets_chunks(server):
    head, body = exchange(server, "Connection: close")
    assert "transfer-encoding: chunked" in head
    assert body.endswith(b"0\r\n\r\n")


def test_what_a_page_has_posted_for_is_given_up_with_its_connection(server):
    """Which Chromium would else read on from, for up to 5 seconds."""
    assert "connection: close" in exchange(server, f"Origin: {server.url}")[0]


def test_bare_text_has_its_status_line_while_the_job_waits(start):
    server = start(SCRIPTED, max_batch_size=1, heartbeat=0.1).wait_until_ready()
    minutes = greedy("x", 1900, stream=True, ignore_eos=True, n=60)
    with server.post("/v1/completions", minutes, stream=True) as running:
        asked = greedy("x", 2, stream=True)
        accept = {"Accept": "text/plain"}
        with server.post("/v1/completions", asked, stream=True, headers=accept) as waiting:
            assert waiting.status_code == 200
            running.close()
            assert waiting.text


@pytest.mark.parametrize(("grace", "max_tokens"), [(30, 300), (0, 1900)])
def test_sigterm_lets_streams_end_or_ends_what_exceeds_the_grace(start, grace, max_tokens):
    server = start(grace=grace).wait_until_ready()
    stream = server.begin(**greedy("x", max_tokens, ignore_eos=True))
    server.process.send_signal(signal.SIGTERM)
    *_, body, done = stream
    assert (b'"finish_reason":"length"' if grace else b'"code":"shutting_down"') in body
    assert done == b"[DONE]"
    assert server.process.wait(30) == 0


def test_an_idle_server_uses_no_cpu(server):
    def cpu_seconds():
        ticks = 0
        for pid in [server.process.pid, *children_of(server.process.pid)]:
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / 100

    server.post("/v1/completions", greedy("x", 1))
    before = cpu_seconds()
    time.sleep(1)  # not to win a race: the time over which the CPU is measured
    used = cpu_seconds() - before
    print(f"idle: {used:.1%} of a core")
    assert used < 0.1  # a loop that asks a thousand times a second is more


def test_no_header_says_where_the_application_lies(server):
    """Otherwise a proxy that keeps some path from the world could be passed."""
    for name in ("SCRIPT_NAME", "PATH_INFO"):
        for path in ("/x/health/live", "/health/live"):
            response = server.get(path, headers={name: "/x"})
            assert response.status_code == (404 if path.startswith("/x") else 200)
