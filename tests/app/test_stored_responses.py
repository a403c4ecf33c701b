"""Stored responses: `store`, `previous_response_id`, GET and DELETE of /v1/responses/{id}."""

import json

import pytest

from switchyard.app.chat.turns.store import StoredTurns
from switchyard.app.chat.turns.turn import OVERHEAD, Turn
from tests.app.responses import HELLO, TOOL, URL, events
from tests.scripted import ScriptedBackend, says

pytestmark = pytest.mark.both_ways

THINKS_AND_CALLS = says(
    "<think>", "Hm.", "</think>", "Sure.", '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
)
WHOLE = "{% for m in messages %}{{ m | tojson }}\n{% endfor %}"  # all that a template can read


def answer(client, body, **more):
    """The whole response, streamed or not."""
    response = client.post(URL, json={**HELLO, **body}, **more)
    assert response.status_code == 200, response.text
    return events(response)[-1]["response"] if body.get("stream") else response.json


def gone(response, identifier):
    return response.status_code == 404 and identifier in response.json["error"]["message"]


@pytest.mark.parameter("previous_response_id")
@pytest.mark.parameter("store", "/v1/responses")
@pytest.mark.parametrize("stream", [False, True])
def test_a_response_continues_another_as_if_all_had_been_sent(make_client, with_template, stream):
    client = make_client(ScriptedBackend(THINKS_AND_CALLS), path=with_template(WHOLE))
    more = {"tools": [TOOL], "stream": stream}
    sent, last, used = [], None, []
    for item in (
        {"role": "user", "content": "What is it?"},
        {"type": "function_call_output", "call_id": "call_1", "output": "three"},
        {"role": "user", "content": "And now?"},
    ):
        turn = {"input": [item], "instructions": f"Be brief, {len(sent)}."}
        response = answer(client, {**more, **turn, "previous_response_id": last})
        sent.append(item)
        answer(client, {**more, **turn, "input": sent, "store": False})
        assert response["previous_response_id"] == last and response["store"] is True
        sent += response["output"]
        last = response["id"]
        used.append(response["usage"]["input_tokens"])
    jobs = [job.prompt for job in client.backend.enqueued]
    assert jobs[::2] == jobs[1::2] and used == [len(job) for job in jobs[::2]]
    told = client.models.get().tokenizer.decode(jobs[-1])
    assert told.count("Be brief") == 1 and told.count("Hm.") == told.count("Sure.") == 2
    body = {**HELLO, "input": [item], "previous_response_id": response["previous_response_id"]}
    counted = client.post(f"{URL}/input_tokens", json={**body, "tools": [TOOL]}).json
    assert counted["input_tokens"] < used[-1]  # without instructions


def test_a_stored_response_is_told_until_it_is_deleted(client):
    response = answer(client, {"stream": True})
    path = f"{URL}/{response['id']}"
    assert client.get(path).json == response
    assert client.get(path.removeprefix("/v1")).json == response
    assert client.get(f"{path}?stream=true").json["error"]["param"] == "stream"
    told = client.delete(path).json
    assert told == {"id": response["id"], "object": "response", "deleted": True}
    assert gone(client.get(path), response["id"]) and gone(client.delete(path), response["id"])
    refused = client.post(URL, json={**HELLO, "previous_response_id": response["id"]})
    assert refused.status_code == 404
    assert refused.json["error"] == {
        "message": f"Previous response with id '{response['id']}' not found.",
        "type": "invalid_request_error",
        "param": "previous_response_id",
        "code": "previous_response_not_found",
    }


@pytest.mark.parametrize(
    "other",
    [{"headers": {"x-api-key": "other"}}, {"environ_overrides": {"REMOTE_ADDR": "10.0.0.7"}}],
    ids=["key", "address"],
)
def test_a_response_of_another_client_is_as_one_that_never_was(client, other):
    response = answer(client, {})
    path = f"{URL}/{response['id']}"
    for ask in (client.get, client.delete):
        mine, never = ask(path, **other), ask(f"{URL}/resp_0", **other)
        assert mine.status_code == never.status_code == 404
        assert mine.text.replace(response["id"], "resp_0") == never.text
    body = {**HELLO, "previous_response_id": response["id"]}
    assert client.post(URL, json=body, **other).status_code == 404
    assert client.get(path).json == response


def test_what_the_client_does_not_want_stored_is_not(client):
    response = answer(client, {"store": False})
    assert response["store"] is False
    assert gone(client.get(f"{URL}/{response['id']}"), response["id"])


@pytest.mark.parametrize("off", [{"store_timeout": 0}, {"max_stored_bytes": 0}], ids=str)
def test_a_server_that_stores_nothing_says_so_at_the_first_turn(make_client, off):
    client = make_client(**off)
    for asked in ({}, {"store": True}):
        first = client.post(URL, json={**HELLO, **asked})
        assert first.headers["X-Switchyard-Ignored"] == "store" and first.json["store"] is False
    quiet = client.post(URL, json={**HELLO, "store": False})
    assert "X-Switchyard-Ignored" not in quiet.headers
    refused = client.post(URL, json={**HELLO, "previous_response_id": first.json["id"]})
    assert refused.status_code == 400
    assert refused.json["error"]["param"] == "previous_response_id"


def test_a_conversation_beyond_what_a_body_may_have_is_refused(make_client):
    client = make_client(max_body_bytes=1000)
    last = answer(client, {"input": "x" * 600})["id"]
    last = answer(client, {"input": "y" * 600, "previous_response_id": last})["id"]
    refused = client.post(URL, json={**HELLO, "previous_response_id": last})
    assert refused.status_code == 400
    assert refused.json["error"]["code"] == "context_length_exceeded"


# The store itself


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def make_store(clock):
    return lambda max_bytes=100 * OVERHEAD, seconds=60: StoredTurns(
        max_bytes, seconds, lambda: clock[0]
    )


def turn(name, client="me", previous=None, size=0):
    texts = (json.dumps([name]).encode(), b"[]")
    return Turn(name, client, client, texts, b" " * size, previous)


def test_turns_are_forgotten_when_their_time_is_over(make_store, clock):
    store = make_store(seconds=60)
    first = turn("a")
    store.put(first)
    clock[0] = 59.0
    store.put(turn("b", previous=first))
    clock[0] = 60.0
    store.forget_old()
    assert store.find("a", "me") is None
    assert store.find("b", "me").conversation() == ["a", "b"]
    clock[0] = 119.0
    store.forget_old()
    assert len(store) == store.num_bytes == 0


def test_memory_is_bounded_and_counts_each_text_once(make_store):
    store = make_store(10 * OVERHEAD)
    last = None
    for i in range(1000):
        last = turn(f"t{i}", previous=last if i % 7 else None, size=i % 100)
        store.put(last)
        reachable = {id(t): t for kept in store._turns.values() for t in kept._turns()}
        assert store.num_bytes == sum(t.num_bytes for t in reachable.values()) <= 10 * OVERHEAD
    for kept in list(store._turns):
        assert store.remove(kept, "me")
    assert store.num_bytes == 0 and not store._bytes and not store._by_client


def test_a_client_that_stores_much_loses_its_own(make_store):
    store = make_store(10 * OVERHEAD)
    store.put(turn("mine"))
    for i in range(100):
        store.put(turn(f"t{i}", client="other"))
    assert store.find("mine", "me") is not None and store.find("t99", "other") is not None
    assert store.find("t0", "other") is None


def test_a_turn_that_was_forgotten_meanwhile_is_counted_again(make_store):
    """Between the lookup of a turn and the end of the response that continues it."""
    store = make_store()
    first = turn("a")
    store.put(first)
    store.remove("a", "me")
    assert store.num_bytes == 0
    store.put(turn("b", previous=first))
    assert store.num_bytes == 2 * OVERHEAD + first.length + turn("b").length


def test_a_long_conversation_is_dropped_whole(make_store):
    store = make_store(10**9)
    last = None
    for i in range(50_000):
        last = turn(f"t{i}", previous=last)
    store.put(last)
    store.remove(last.identifier, "me")
    assert store.num_bytes == 0
    del last  # frees a chain: without recursion that overflows
