"""What one key has asked for is another's neither to see, nor to take up, nor to end, whatever
their addresses; an admin sees and ends all.
"""

import logging

import pytest

from tests.app.conftest import listed_name, stream, wait_until_empty
from tests.operations.conftest import bearer
from tests.scripted import ScriptedBackend, ticking

__all__ = ["stream"]

URL = "/v1/completions"
LONG = {"prompt": "x", "max_tokens": 2000}
THERE = {"environ_overrides": {"REMOTE_ADDR": "10.0.0.7"}}


@pytest.fixture
def client(make_keyed):
    return make_keyed(ScriptedBackend(ticking), resume_timeout=3600)


def rows(client, name):
    return client.get("/v1/requests", headers=bearer(name)).json["data"]


def test_another_key_of_the_same_address_can_do_nothing_with_an_id(client, stream):
    streamed = stream(headers=bearer("ann"))
    for identifier in (streamed.identifier, listed_name(streamed.identifier)):
        path = f"/v1/requests/{identifier}"
        assert client.delete(path, headers=bearer("bob")).status_code == 404
    path = f"/v1/streams/{streamed.identifier}"
    assert client.get(path, headers=bearer("bob")).status_code == 404
    headers = {**bearer("bob"), "Last-Event-ID": f"{streamed.identifier}:1"}
    assert client.post(URL, json=LONG, headers=headers).status_code == 404
    assert rows(client, "bob") == []
    assert len(rows(client, "ann")) == len(rows(client, "root")) == 1


def test_a_key_is_the_same_owner_from_everywhere_which_is_nothing_to_audit(client, stream, caplog):
    streamed = stream(headers=bearer("ann"))
    resumed = client.get(f"/v1/streams/{streamed.identifier}", headers=bearer("ann"), **THERE)
    assert resumed.status_code == 200
    path = f"/v1/requests/{streamed.identifier}"
    with caplog.at_level(logging.WARNING, "switchyard.audit"):
        assert client.delete(path, headers=bearer("ann"), **THERE).json["cancelled"] == 1
    assert caplog.messages == []
    resumed.close()


def test_an_admin_ends_any_and_that_is_told(client, stream, caplog):
    streamed = stream(headers=bearer("ann"))
    name = listed_name(streamed.identifier)
    with caplog.at_level(logging.WARNING, "switchyard.audit"):
        response = client.delete(f"/v1/requests/{name}", headers=bearer("root"), **THERE)
    assert response.json["cancelled"] == 1
    assert caplog.messages == [f"key:root: cancel {name} of key:ann"]
    wait_until_empty(client)


def test_a_process_of_the_servers_machine_needs_a_key_to_end_anything(client, stream):
    identifier = stream(headers=bearer("ann")).identifier
    assert client.delete(f"/v1/requests/{identifier}").status_code == 401
    assert client.get("/v1/requests").status_code == 401


def test_shares_are_by_key(make_keyed):
    backend = ScriptedBackend()
    client = make_keyed(backend)
    for name, more in (("ann", {}), ("ann", THERE), ("bob", {})):
        client.post(URL, json={"prompt": "x", "max_tokens": 1}, headers=bearer(name), **more)
    shares = [(job.client, job.owner) for job in backend.enqueued]
    assert shares == [("key:ann", "key:ann")] * 2 + [("key:bob", "key:bob")]
