"""Whose address counts, behind proxies that are trusted and others."""

import pytest

from tests.scripted import ScriptedBackend

URL = "/v1/completions"
BODY = {"prompt": "x", "max_tokens": 1}


def shares(client, backend, peer, *forwarded, **environ):
    headers = [("X-Forwarded-For", value) for value in forwarded]
    response = client.post(
        URL, json=BODY, headers=headers, environ_overrides={"REMOTE_ADDR": peer, **environ}
    )
    assert response.status_code == 200
    return backend.enqueued[-1].client


@pytest.mark.parametrize(
    ("peer", "forwarded", "client_address"),
    [
        ("10.0.0.1", ["1.2.3.4"], "1.2.3.4"),
        ("10.0.0.1", ["9.9.9.9, 1.2.3.4"], "1.2.3.4"),  # the left one is the client's own word
        ("10.0.0.1", ["1.2.3.4, 10.0.0.2"], "1.2.3.4"),  # two proxies in a row
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["unknown"], "10.0.0.1"),
        ("10.0.0.1", ["1.2.3.4, unknown, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", ["1.2.3.4:5678"], "1.2.3.4"),
        ("10.0.0.1", ["[2001:db8::1]:5678"], "2001:db8::/64"),
        ("10.0.0.1", ["2001:db8::1"], "2001:db8::/64"),
        ("::ffff:10.0.0.1", ["1.2.3.4"], "1.2.3.4"),
        ("10.0.0.1", ["::ffff:1.2.3.4"], "1.2.3.4"),
        ("2001:db8:1::5", ["1.2.3.4"], "1.2.3.4"),
        ("1.1.1.1", ["1.2.3.4"], "1.1.1.1"),  # no proxy of ours: anybody can write that
    ],
)
def test_the_rightmost_address_that_is_no_proxys_is_the_client(
    make_client, peer, forwarded, client_address
):
    backend = ScriptedBackend()
    client = make_client(backend, trusted_proxies=["10.0.0.0/8", "2001:db8:1::/48"])
    assert shares(client, backend, peer, *forwarded) == f"address:{client_address}"


def test_a_forged_header_changes_nothing_without_trusted_proxies(make_client):
    backend = ScriptedBackend()
    client = make_client(backend)
    for peer in ("127.0.0.1", "10.0.0.1"):
        assert shares(client, backend, peer, "1.2.3.4") == f"address:{peer}"


@pytest.mark.parametrize(("trusted", "told"), [(["unix"], "1.2.3.4"), (["10.0.0.0/8"], "")])
def test_a_proxy_behind_a_unix_socket_is_trusted_by_its_word(make_client, ends, trusted, told):
    backend = ScriptedBackend()
    client = make_client(backend, trusted_proxies=trusted)
    environ = {"werkzeug.socket": ends[0]}
    assert shares(client, backend, "", "1.2.3.4", **environ) == f"address:{told}"
