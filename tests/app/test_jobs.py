"""Listing and cancelling what the server is at work on."""

import pytest

from tests.app.conftest import frames, listed, listed_name, wait_until_empty
from tests.scripted import ScriptedBackend, ticking

URL = "/v1/completions"
LONG = {"prompt": [1, 2, 3], "max_tokens": 2000}


def test_requests_are_listed_with_their_state_and_place(make_client, ask):
    client = make_client(ScriptedBackend(ticking, max_active=1))
    assert client.get("/v1/requests").json == {"object": "list", "data": []}
    first = ask(client, LONG)
    listed(client, 1)
    second = ask(client, {**LONG, "n": 2, "priority": -1})
    rows = listed(client, 3)
    assert [row["state"] for row in rows] == ["decode", "pending", "pending"]
    assert [row["place"] for row in rows] == [None, 1, 2]
    assert [row["index"] for row in rows] == [0, 0, 1]
    assert [row["pages"] for row in rows] == [1, 0, 0]
    assert [row["priority"] for row in rows] == [0, -1, -1]
    assert rows[0]["id"] != rows[1]["id"] == rows[2]["id"]
    while not rows[2]["age"]:  # of less than half a millisecond
        rows = listed(client, 3)
    assert rows[0]["age"] >= rows[1]["age"] >= rows[2]["age"] > 0
    assert all(row["model"] == "scripted" and row["prompt_tokens"] == 3 for row in rows)
    for row in (rows[0], rows[1]):
        assert client.delete(f"/v1/requests/{row['id']}").status_code == 200
    for answer in (first, second):
        assert answer.get(timeout=20).status_code == 200
    wait_until_empty(client)


@pytest.mark.parametrize("stream", [False, True])
def test_a_cancelled_requests_client_gets_what_there_is(make_client, ask, stream):
    client = make_client(ScriptedBackend(ticking))
    answer = ask(client, {**LONG, "n": 2, "stream": stream})
    identifier = listed(client, 2, active=2)[0]["id"]
    response = client.delete(f"/v1/requests/{identifier}")
    assert response.json == {"id": identifier, "object": "request", "cancelled": 2}
    answered = answer.get(timeout=20)
    assert answered.status_code == 200
    if stream:
        bodies = frames(answered)
        assert {listed_name(body["id"]) for body in bodies} == {identifier}
        choices = [body["choices"][0] for body in bodies]
        reasons = [c["finish_reason"] for c in choices if c["finish_reason"]]
        assert any(c["text"] for c in choices)
    else:
        assert listed_name(answered.json["id"]) == identifier
        reasons = [choice["finish_reason"] for choice in answered.json["choices"]]
        assert all(choice["text"] for choice in answered.json["choices"])
        assert answered.json["usage"]["completion_tokens"] > 0
    assert reasons == ["cancelled", "cancelled"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_that_waits_is_cancelled_with_no_text(make_client, ask, stream):
    client = make_client(ScriptedBackend(ticking, max_active=1))
    busy = ask(client, LONG)
    listed(client, 1)
    body = {"messages": [{"role": "user", "content": "x"}], "stream": stream}
    answer = ask(client, body, "/v1/chat/completions")
    identifiers = [row["id"] for row in listed(client, 2)]
    assert client.delete(f"/v1/requests/{identifiers[1]}").status_code == 200
    answered = answer.get(timeout=20)
    last = frames(answered)[-1] if stream else answered.json
    assert listed_name(last["id"]) == identifiers[1]
    assert last["choices"][0]["finish_reason"] == "cancelled"
    client.delete(f"/v1/requests/{identifiers[0]}")
    busy.get(timeout=20)


def test_bare_text_that_waits_is_cancelled_at_once(make_client, ask):
    client = make_client(ScriptedBackend(ticking, max_active=1), heartbeat=12)
    busy = ask(client, LONG)
    listed(client, 1)
    answer = ask(client, {"prompt": "x", "stream": True}, headers={"Accept": "text/plain"})
    identifiers = [row["id"] for row in listed(client, 2)]
    assert client.delete(f"/v1/requests/{identifiers[1]}").status_code == 200
    response = answer.get(timeout=6)
    assert (response.status_code, response.get_data()) == (200, b"")
    client.delete(f"/v1/requests/{identifiers[0]}")
    busy.get(timeout=20)


def test_what_does_not_run_cannot_be_cancelled(make_client):
    client = make_client()
    identifier = client.post(URL, json={"prompt": "x"}).json["id"]
    for gone in (identifier, "nonsense", "x" * 500):
        response = client.delete(f"/v1/requests/{gone}")
        assert response.status_code == 404
        assert len(response.json["error"]["message"]) < 200
