"""What clients of one server may see, take up and end of each other's: nothing. Those behind one
proxy have its address in common, and often an API key that means nothing.
"""

import logging

import pytest

from switchyard.engine.messages import Chunk, Started
from tests.app.conftest import listed, listed_name, wait_until_empty
from tests.engine.reading import wait_for_state
from tests.scripted import ScriptedBackend, ticking

URL = "/v1/completions"
LONG = {"prompt": "x", "max_tokens": 2000}
FOR_EVER = 3600
PROXIED = {"X-Forwarded-For": "10.0.0.7"}
THERE = {"environ_overrides": {"REMOTE_ADDR": "10.0.0.7"}}


@pytest.fixture
def client(make_client):
    return make_client(ScriptedBackend(ticking), resume_timeout=FOR_EVER)


@pytest.mark.parametrize("key", [{}, {"Authorization": "Bearer none"}], ids=["no-key", "any-key"])
def test_what_the_list_tells_opens_nobodys_stream(client, stream, key):
    streamed = stream(headers=key)
    [row] = listed(client, 1)
    assert streamed.identifier not in str(row)
    for value in filter(None, map(str, row.values())):
        for request in (client.get, client.delete):
            assert request(f"/v1/streams/{value}", headers=key).status_code in (404, 405)
        response = client.post(URL, headers={**key, "Last-Event-ID": f"{value}:1"})
        assert response.status_code == 404
        response = client.delete(f"/v1/requests/{value}", headers={**key, **PROXIED})
        assert response.status_code == 404
    assert len(listed(client, 1)) == 1
    identifier = streamed.identifier
    assert client.get(f"/v1/streams/{identifier}", headers=key).status_code == 200


@pytest.mark.parametrize(
    "more", [{"headers": {"x-api-key": "other"}}, THERE], ids=["key", "address"]
)
def test_another_client_can_do_nothing_with_the_id_itself(client, stream, more):
    headers = {**PROXIED, **more.pop("headers", {})}
    streamed = stream(headers={"x-api-key": "mine"})
    for request, path in ((client.get, "streams"), (client.delete, "requests")):
        response = request(f"/v1/{path}/{streamed.identifier}", headers=headers, **more)
        assert response.status_code == 404
    listed(client, 1)


def test_a_client_from_elsewhere_ends_its_request_by_the_id_of_its_response_alone(client, stream):
    identifier = stream(**THERE).identifier
    listed_id = listed_name(identifier)
    assert client.delete(f"/v1/requests/{listed_id}", **THERE).status_code == 404
    assert client.delete(f"/v1/requests/{identifier}", **THERE).json["cancelled"] == 1
    wait_until_empty(client)


@pytest.mark.parametrize("name", [str, listed_name])
def test_a_process_of_the_servers_machine_ends_any_by_either_id(client, stream, name, caplog):
    identifier = name(stream(**THERE).identifier)
    with caplog.at_level(logging.WARNING, "switchyard.audit"):
        assert client.delete(f"/v1/requests/{identifier}").json["cancelled"] == 1
    told = f"address:127.0.0.1: cancel {identifier} of address:10.0.0.7"
    assert caplog.messages == [told]
    wait_until_empty(client)


def test_what_a_client_calls_its_request_is_told_to_no_other(client, stream):
    stream(headers={"X-Request-Id": "mine"})
    assert listed(client, 1)[0]["request_id"] == "mine"
    for more in (THERE, {"headers": {"x-api-key": "other"}}):
        [row] = client.get("/v1/requests", **more).json["data"]
        assert row["request_id"] == ""


@pytest.mark.parametrize(
    ("key", "there"), [({}, {}), ({"Authorization": "Bearer none"}, THERE)], ids=["none", "any"]
)
def test_one_idempotency_key_of_two_clients_is_no_conflict(make_client, key, there):
    client = make_client()
    texts = []
    for n, more in ((2, {}), (3, there), (2, {})):
        body, headers = {"prompt": "x", "max_tokens": n}, {"Idempotency-Key": "1", **key}
        response = client.post(URL, json=body, headers=headers, **more)
        texts += [choice["text"] for choice in response.json["choices"]]
    assert texts == ["0 1 ", "0 1 2 ", "0 1 "]
    assert len(client.backend.enqueued) == 2


def test_a_failure_that_all_are_told_names_nobodys_response(make_client, ask):
    def failing(job):
        yield Started(job.identifier)
        yield Chunk(job.identifier, "x", (0,))
        raise KeyError(job.identifier)

    backend = ScriptedBackend(failing)
    backend.recovering.clear()
    client = make_client(backend)
    answer = ask(client, LONG)
    model = client.models.get()
    wait_for_state(model, "recovering")
    [job] = backend.enqueued
    secret = job.identifier.split("-")[1]
    told = client.get("/health/ready").json["reasons"]["scripted"]
    assert "KeyError" in told and secret not in told
    backend.recovering.set()
    told = answer.get(timeout=20).json["error"]["message"]
    assert "KeyError" in told and secret not in told
