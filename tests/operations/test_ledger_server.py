"""The ledger of a real server: killed, ended, damaged, and asked over a WebSocket."""

import concurrent.futures
import json
import os
import signal
import threading
import time

import pytest
import requests
import websocket

from tests.conftest import run_code, wait_for
from tests.faults.conftest import SCRIPTED, worker_of
from tests.operations.ledgers import read

URL = "/v1/completions"
NUM_STREAMS = 20
MARGIN = 0.5  # seconds: an interval of the ledger, on a machine with much else to do
STATES = "SELECT state, count(*) FROM requests GROUP BY 1"


def open_rows(path):
    return dict(read(path, STATES)).get("open", 0)


def usage(server):
    today = requests.get(f"{server.url}/v1/usage?group_by=key", timeout=30).json()["data"]
    return today[0] if today else None


def kill(server):
    """Master and worker, at once; the engine's process ends with the worker."""
    worker = worker_of(server)
    server.process.kill()
    os.kill(worker, signal.SIGKILL)
    server.process.wait(60)


def test_a_killed_server_loses_no_row_and_counts_none_twice(start, path):
    server = start(SCRIPTED, ledger=path, max_batch_size=64).wait_until_ready()
    stream = {"prompt": [3, 4, 5], "max_tokens": 2000, "stream": True}
    streams = [server.post(URL, stream, stream=True) for _ in range(NUM_STREAMS)]
    parts = [response.iter_content(None) for response in streams]
    for part in parts:
        next(part)
    finished, is_over = {}, threading.Event()  # when, by the response's id

    def ask_again_and_again():
        while not is_over.is_set():
            try:
                answer = server.post(URL, {"prompt": [3, 4], "max_tokens": 3}).json()
            except requests.RequestException:
                return
            finished[answer["id"]] = time.monotonic(), answer["usage"]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(ask_again_and_again) for _ in range(4)]
        wait_for(lambda: len(finished) >= 120)
        killed = time.monotonic()
        kill(server)
        is_over.set()
        for client in clients:
            client.result()
    for response in streams:
        response.close()
    rows = dict(read(path, "SELECT id, state FROM requests"))
    sure = [id for id, (when, _) in finished.items() if when < killed - MARGIN]
    assert len(sure) >= 10
    assert [id for id in sure if rows.get(id) != "done"] == []
    assert sum(state == "open" for state in rows.values()) >= NUM_STREAMS
    num_done = sum(state == "done" for state in rows.values())
    num_open = len(rows) - num_done
    for _ in range(2):  # another start changes nothing
        server = start(SCRIPTED, ledger=path).wait_until_ready()
        assert dict(read(path, STATES)) == {"done": num_done, "lost": num_open}
        told = usage(server)
        assert (told["requests"], told["failed"]) == (len(rows), num_open)
        assert told["completion_tokens"] == 3 * num_done
        sums = read(path, "SELECT sum(prompt_tokens), sum(completion_tokens) FROM requests")
        assert [(told["prompt_tokens"], told["completion_tokens"])] == sums
        assert server.stop() == 0
    assert told["prompt_tokens"] == 2 * (len(rows) - NUM_STREAMS) + 3 * NUM_STREAMS


@pytest.mark.parametrize("grace", [0, 30])
def test_a_server_that_ends_leaves_nothing_open(start, path, grace):
    server = start(SCRIPTED, ledger=path, grace=grace).wait_until_ready()
    body = {"prompt": [3, 4, 5], "max_tokens": 100, "stream": True}
    streams = [server.post(URL, body, stream=True) for _ in range(4)]
    wait_for(lambda: open_rows(path) == 4)
    readers = [threading.Thread(target=response.close) for response in streams[:1]]
    readers += [threading.Thread(target=lambda r=r: r.content) for r in streams[1:]]
    for reader in readers:
        reader.start()
    assert server.stop() == 0
    for reader in readers:
        reader.join(30)
    assert dict(read(path, STATES)) == {"done": 4}
    assert read(path, "SELECT sum(requests) FROM days") == [(4,)]


HOST = """
import flask, sys
from switchyard import Switchyard
from switchyard.app.ledger import writer
writer.INTERVAL = 1000.0
app = flask.Flask("host")
host = Switchyard(app, model=sys.argv[1], ledger=sys.argv[2])
with app.app_context():
    host.generate("abc", max_tokens=3)
"""


def test_a_host_application_that_ends_writes_what_it_has(model_path, path):
    run_code(HOST, model_path, path)
    assert read(path, STATES) == [("done", 1)]


def test_each_generation_on_a_websocket_is_a_row(start, path):
    server = start(SCRIPTED, ledger=path).wait_until_ready()
    connection = websocket.create_connection(
        server.url.replace("http", "ws") + "/v1/stream", timeout=30
    )
    for id, more in ((1, {"max_tokens": 2}), (2, {"max_tokens": 3}), (3, {"model": "none"})):
        connection.send(json.dumps({"type": "generate", "id": id, "prompt": "x", **more}))
        while json.loads(connection.recv())["type"] not in ("end", "error"):
            pass
    connection.close()
    assert server.stop() == 0
    rows = read(path, "SELECT route, status, state, completion_tokens FROM requests ORDER BY 4")
    assert rows == [("/v1/stream", 200, "done", 2), ("/v1/stream", 200, "done", 3)]
    assert read(path, "SELECT sum(requests), sum(failed) FROM days") == [(3, 1)]


def test_a_ledger_that_cannot_be_used_ends_the_start_with_one_line(start, path):
    path.write_bytes(b"no database" * 1000)
    server = start(SCRIPTED, ledger=path)
    assert server.process.wait(60) == 3
    [line] = [line for line in server.output.splitlines() if "ledger" in line]
    assert line.startswith(f"switchyard: ledger {path} is damaged") and "backup" in line
    assert "Traceback" not in server.output


def test_a_server_over_anothers_ledger_does_not_start(start, path):
    server = start(SCRIPTED, ledger=path).wait_until_ready()
    second = start(SCRIPTED, ledger=path)
    assert second.process.wait(60) == 3
    assert "is used by another running server" in second.output
    assert server.stop() == 0
