"""Servers whose settings or end decide how long a connection to /v1/stream lives."""

from tests.faults.conftest import SCRIPTED
from tests.faults.paced import FLOOD
from tests.faults.websockets import LONG, Client, wait_until_free, wait_until_idle
from tests.live.conftest import shared_server

strict = shared_server(SCRIPTED, send_timeout=1, max_websockets=1, max_body_bytes=500_000)


def test_large_messages_are_taken_up_to_the_bodies_limit(strict):
    client = wait_until_free(strict)
    client.socket.send("x" * 500_000)
    assert client.receive()["error"]["code"] == "invalid_json"
    client.socket.send("x" * 500_001)
    assert client.close_code() == 1009
    client.close()


def test_a_reader_that_takes_nothing_is_cut_off_and_its_jobs_are_cancelled(strict):
    client = wait_until_free(strict, receive_buffer=4096)
    for i in range(4):  # 64 KiB a token each: 25 MB a second
        client.send("generate", i, prompt="x", max_tokens=1000, seed=FLOOD)
    client.socket.sock.recv(10)
    wait_until_idle(strict)
    wait_until_free(strict).close()
    client.close()


def test_a_connection_is_closed_that_has_had_no_work_for_too_long(start):
    server = start(SCRIPTED, websocket_timeout=1, max_websockets=2).wait_until_ready()
    idle, busy = Client(server), Client(server, address="127.0.0.2")
    busy.send("generate", 1, prompt="x", max_tokens=150)  # 1.5 seconds
    idle.send("cancel", 5)  # which is no work
    told = [idle.receive()["error"]["code"] for _ in range(2)]
    assert told == ["unknown_id", "websocket_timeout"]
    assert idle.close_code() == 1000
    assert busy.until(1, "end", "error")[-1]["type"] == "end"
    assert busy.receive()["error"]["code"] == "websocket_timeout"
    wait_until_free(server).close()
    for client in (idle, busy):
        client.close()


def test_a_drain_ends_idle_connections_at_once_and_the_others_with_an_error(start):
    server = start(SCRIPTED, grace=4).wait_until_ready()
    idle, short, long = Client(server), Client(server), Client(server)
    short.send("generate", 1, prompt="x", max_tokens=100)
    long.send("generate", 1, **LONG)
    short.until(1, "chunk")
    long.until(1, "chunk")
    server.process.terminate()
    assert idle.receive()["error"]["code"] == "overloaded"
    assert idle.close_code() == 1001
    short.send("generate", 2, prompt="x")  # before the grace is over
    ended, refused = short.ends(1, 2)
    assert (ended["type"], refused["status"]) == ("end", 503)
    assert long.until(1, "end", "error")[-1]["error"]["code"] == "shutting_down"
    for client in (short, long):
        assert client.close_code() == 1001
    for client in (short, long, idle):
        client.close()
    assert server.process.wait(20) == 0
    assert "Traceback" not in server.output
