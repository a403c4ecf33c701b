"""Listing and cancelling what the server is at work on."""

import pytest

from tests.app.conftest import frames, listed, listed_name, wait_until_empty
from tests.scripted import ScriptedBackend, ticking

URL = "/v1/completions"
LONG = {"prompt": [1, 2, 3], "max_tokens": 2000}


def cancel(client, identifier):
    response = client.delete(f"/v1/requests/{identifier}")
    assert response.status_code == 200
    return response.json


@pytest.fixture
def busy(make_client, ask):
    """A client of a model whose only place is taken, and the other request's identifier."""
    client = make_client(ScriptedBackend(ticking, max_active=1), heartbeat=12)
    answer = ask(client, LONG)
    [row] = listed(client, 1)
    yield client, row["id"]
    cancel(client, row["id"])
    assert answer.get(timeout=20).status_code == 200
    wait_until_empty(client)


def test_requests_are_listed_with_their_state_and_place(busy, ask):
    client, first = busy
    second = ask(client, {**LONG, "n": 2, "priority": -1})
    rows = listed(client, 3)
    columns = ("state", "place", "index", "pages", "priority")
    assert [tuple(row[name] for name in columns) for row in rows] == [
        ("decode", None, 0, 1, 0),
        ("pending", 1, 0, 0, -1),
        ("pending", 2, 1, 0, -1),
    ]
    assert first == rows[0]["id"] != rows[1]["id"] == rows[2]["id"]
    while not rows[2]["age"]:  # of less than half a millisecond
        rows = listed(client, 3)
    assert rows[0]["age"] >= rows[1]["age"] >= rows[2]["age"] > 0
    assert all(row["model"] == "scripted" and row["prompt_tokens"] == 3 for row in rows)
    cancel(client, rows[1]["id"])
    assert second.get(timeout=20).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_cancelled_requests_client_gets_what_there_is(make_client, ask, stream):
    client = make_client(ScriptedBackend(ticking))
    answer = ask(client, {**LONG, "n": 2, "stream": stream})
    identifier = listed(client, 2, active=2)[0]["id"]
    told = {"id": identifier, "object": "request", "cancelled": 2}
    assert cancel(client, identifier) == told
    answered = answer.get(timeout=20)
    assert answered.status_code == 200
    bodies = frames(answered) if stream else [answered.json]
    assert {listed_name(body["id"]) for body in bodies} == {identifier}
    choices = [choice for body in bodies for choice in body["choices"]]
    reasons = [c["finish_reason"] for c in choices if c["finish_reason"]]
    assert reasons == ["cancelled", "cancelled"]
    assert (any if stream else all)(choice["text"] for choice in choices)
    assert stream or answered.json["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_that_waits_is_cancelled_with_no_text(busy, ask, stream):
    client, _ = busy
    body = {"messages": [{"role": "user", "content": "x"}], "stream": stream}
    answer = ask(client, body, "/v1/chat/completions")
    [_, row] = listed(client, 2)
    cancel(client, row["id"])
    answered = answer.get(timeout=20)
    last = frames(answered)[-1] if stream else answered.json
    assert listed_name(last["id"]) == row["id"]
    assert last["choices"][0]["finish_reason"] == "cancelled"


def test_bare_text_that_waits_is_cancelled_at_once(busy, ask):
    client, _ = busy
    answer = ask(client, {"prompt": "x", "stream": True}, headers={"Accept": "text/plain"})
    [_, row] = listed(client, 2)
    cancel(client, row["id"])
    response = answer.get(timeout=6)
    assert (response.status_code, response.get_data()) == (200, b"")


def test_what_does_not_run_cannot_be_cancelled(client):
    assert client.get("/v1/requests").json == {"object": "list", "data": []}
    identifier = client.post(URL, json={"prompt": "x"}).json["id"]
    for gone in (identifier, "nonsense", "x" * 500):
        response = client.delete(f"/v1/requests/{gone}")
        assert response.status_code == 404
        assert len(response.json["error"]["message"]) < 200
