"""A real gunicorn over real sockets, with the real generator."""

import json
import pathlib
import signal
import socket
import threading
import time

import pytest
import requests

from switchyard.engine.memory.gpus import has_gpu
from tests.conftest import DEMO
from tests.faults.conftest import SCRIPTED

SENTENCE = "the quick brown fox jumps over a lazy dog while seven wizards box"
WORDS = SENTENCE.split()


def prompts(count):
    """Prompts of different lengths, some longer than a page of the cache."""
    words = [[WORDS[(i * k + k) % len(WORDS)] for k in range(5 + 2 * i)] for i in range(count)]
    return [f"{' '.join(words[i])} number {i}" for i in range(count)]


def greedy(prompt, max_tokens=24, **more):
    return {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}


def streamed_text(response):
    texts, is_done = [], False
    for line in response.iter_lines():
        if line == b"data: [DONE]":
            is_done = True
        elif line.startswith(b"data: "):
            body = json.loads(line[6:])
            assert "error" not in body, body
            texts += [choice["text"] for choice in body["choices"]]
    assert is_done
    return "".join(texts)


def in_threads(call, arguments):
    """Results of `call` for each argument, all called at the same moment."""
    barrier = threading.Barrier(len(arguments))
    results = [None] * len(arguments)

    def run(i):
        barrier.wait(30)
        results[i] = call(arguments[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(arguments))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return results


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

    def ask(body):
        with server.post("/v1/completions", {**body, "stream": True}, stream=True) as response:
            return streamed_text(response)

    for _ in range(pytestconfig.option.rounds):
        assert in_threads(ask, bodies) == alone


def test_a_prompt_seen_before_is_cached_and_starts_sooner(server):
    prompt = " ".join(WORDS[i * i % 13] for i in range(700))

    def first_token_seconds():
        begin = time.monotonic()
        with server.post("/v1/completions", greedy(prompt, 2, stream=True), stream=True) as r:
            next(r.iter_content(None))
            return time.monotonic() - begin

    def cached():
        body = server.post("/v1/completions", greedy(prompt, 2)).json()
        return body["usage"]["prompt_tokens_details"]["cached_tokens"]

    cold = first_token_seconds()
    warm = first_token_seconds()
    print(f"time to first token: {cold * 1e3:.0f} ms, seen before {warm * 1e3:.0f} ms")
    assert cached() > 500


def test_health_and_refusals_are_answered_while_every_stream_is_busy(start):
    server = start(max_batch_size=4, max_pending=4).wait_until_ready()
    stop = threading.Event()

    def keep_a_place():  # again and again: a fast device is soon through with a text
        while not stop.is_set():
            body = greedy("x", 1900, stream=True, ignore_eos=True)
            with server.post("/v1/completions", body, stream=True) as response:
                for _ in response.iter_content(None):
                    if stop.is_set():
                        break

    busy = [threading.Thread(target=keep_a_place) for _ in range(8)]  # four of them in the line
    for thread in busy:
        thread.start()
    statuses, seconds = [], []
    deadline = time.monotonic() + 30
    while 429 not in statuses and time.monotonic() < deadline:
        begin = time.monotonic()
        refused = server.post("/v1/completions", greedy("x", 1, stream=True), stream=True)
        statuses.append(refused.status_code)
        refused.close()
        between = time.monotonic()
        assert requests.get(f"{server.url}/health/live", timeout=10).status_code == 200
        seconds.append((between - begin, time.monotonic() - between))
    print(f"refused in {seconds[-1][0] * 1e3:.0f} ms, live in {seconds[-1][1] * 1e3:.0f} ms")
    stop.set()
    for thread in busy:
        thread.join(60)
    assert statuses[-1] == 429


def raw_request(server, version, body, *headers):
    data = json.dumps(body).encode()
    lines = [
        f"POST /v1/completions HTTP/{version}",
        f"Host: 127.0.0.1:{server.port}",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        *headers,
    ]
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        received = b""
        while part := client.recv(65536):
            received += part
    head, _, rest = received.partition(b"\r\n\r\n")
    return head.decode().lower(), rest


def test_an_http_1_0_client_gets_a_body_that_the_end_of_the_connection_delimits(server):
    head, body = raw_request(server, "1.0", greedy("x", 3, stream=True))
    assert "200 ok" in head and "transfer-encoding" not in head and "content-length" not in head
    assert body.startswith(b"data: {") and body.endswith(b"data: [DONE]\n\n")


def test_an_http_1_1_client_gets_chunks(server):
    head, body = raw_request(server, "1.1", greedy("x", 3, stream=True), "Connection: close")
    assert "transfer-encoding: chunked" in head
    assert body.endswith(b"0\r\n\r\n")


def test_what_a_page_has_posted_for_is_given_up_with_its_connection(server):
    """Which Chromium would else read on from, for up to 5 seconds."""
    origin = f"Origin: {server.url}"
    head, _ = raw_request(server, "1.1", greedy("x", 3, stream=True), origin)
    assert "200 ok" in head and "connection: close" in head


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


def test_a_body_of_chunks_that_are_none_is_a_bad_request(server):
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\nZZ\r\n{}\r\n0\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(head.encode())
        received = b""
        while part := client.recv(65536):
            received += part
    assert received.startswith(b"HTTP/1.1 400 ") and b'"code":"invalid_body"' in received


def test_a_body_over_the_limit_gets_its_answer(start):
    server = start(SCRIPTED, max_body_bytes=100_000).wait_until_ready()
    response = server.post("/v1/completions", {"prompt": "x" * 200_000})
    assert response.status_code == 413 and "100000 bytes" in response.json()["error"]["message"]


def test_a_client_that_leaves_a_stream_has_its_job_cancelled(start):
    server = start(max_batch_size=1, max_pending=0).wait_until_ready()
    long = greedy("x", 1900, stream=True, ignore_eos=True)
    response = server.post("/v1/completions", long, stream=True)
    content = response.iter_content(None)  # held: when it is collected, the connection closes
    next(content)
    assert server.post("/v1/completions", greedy("y", 1)).status_code == 429
    response.close()
    deadline = time.monotonic() + 30
    while (status := server.post("/v1/completions", greedy("y", 1)).status_code) == 429:
        assert time.monotonic() < deadline
    assert status == 200


def test_sigterm_lets_streams_end_and_exits_with_0(start):
    server = start(is_warm=False).wait_until_ready()
    response = server.post(
        "/v1/completions", greedy("x", 300, stream=True, ignore_eos=True), stream=True
    )
    lines = response.iter_lines()
    next(lines)
    server.process.send_signal(signal.SIGTERM)
    rest = list(lines)
    assert rest[-2:] == [b"data: [DONE]", b""] or b"data: [DONE]" in rest[-2:]
    assert b'"finish_reason":"length"' in b"".join(rest)
    assert server.process.wait(30) == 0


def test_sigterm_ends_what_exceeds_the_grace_with_an_error_event(start):
    server = start(grace=0).wait_until_ready()
    response = server.post(
        "/v1/completions", greedy("x", 1900, stream=True, ignore_eos=True), stream=True
    )
    lines = response.iter_lines()
    next(lines)
    server.process.send_signal(signal.SIGTERM)
    rest = [line for line in lines if line]
    assert rest[-1] == b"data: [DONE]"
    assert json.loads(rest[-2][6:])["error"]["code"] == "shutting_down"
    assert server.process.wait(30) == 0


def test_an_idle_server_uses_no_cpu(server):
    def cpu_seconds():
        ticks = 0
        for pid in [server.process.pid, *children(server.process.pid)]:
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / 100

    server.post("/v1/completions", greedy("x", 1))
    before = cpu_seconds()
    time.sleep(1)  # not to win a race: the time over which the CPU is measured
    used = cpu_seconds() - before
    print(f"idle: {used:.1%} of a core")
    assert used < 0.1  # a loop that asks a thousand times a second is more


def children(pid):
    return [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_chat_gives_the_same_text_streamed_and_whole(server):
    body = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
        ],
        "max_tokens": 20,
        "temperature": 0,
    }
    whole = server.post("/v1/chat/completions", body).json()
    message = whole["choices"][0]["message"]
    assert message["role"] == "assistant" and message["content"]
    bodies = []
    with server.post("/v1/chat/completions", {**body, "stream": True}, stream=True) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        lines = [line.removeprefix(b"data: ") for line in response.iter_lines() if line]
    assert lines.pop() == b"[DONE]"
    bodies = [json.loads(line)["choices"][0] for line in lines if not line.startswith(b":")]
    assert bodies[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(b["delta"].get("content", "") for b in bodies) == message["content"]
    assert [b["finish_reason"] for b in bodies[:-1]] == [None] * (len(bodies) - 1)
    assert bodies[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]


def test_no_header_says_where_the_application_lies(server):
    """Otherwise a proxy that keeps some path from the world could be passed."""
    for name in ("SCRIPT_NAME", "PATH_INFO"):
        for path in ("/x/health/live", "/health/live"):
            response = requests.get(f"{server.url}{path}", headers={name: "/x"}, timeout=10)
            assert response.status_code == (404 if path.startswith("/x") else 200)
