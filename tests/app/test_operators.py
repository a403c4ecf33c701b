"""Who has an operator's rights, and who counts as which client."""

import flask
import pytest

from switchyard.app.http.identity import (
    ADDRESS,
    CALLER,
    Caller,
    author_of,
    is_operator,
    key_of,
    owner_of,
    share_of,
)
from switchyard.app.http.places import Places

FOREIGN = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via", "Origin")


def ask(what, address="127.0.0.1", headers=(), **environ):
    """What is said of a request from this address."""
    environ = {"REMOTE_ADDR": address, **environ}
    with flask.Flask("host").test_request_context(headers=headers, environ_overrides=environ):
        return what(flask.request)


@pytest.mark.parametrize(
    ("address", "is_local"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("", False),
    ],
)
def test_without_keys_a_process_of_this_machine_is_an_operator(address, is_local):
    assert ask(is_operator, address) is is_local


@pytest.mark.parametrize("name", FOREIGN)
def test_a_header_of_a_proxy_or_a_page_makes_a_request_foreign(name):
    assert not ask(is_operator, headers={name: "x"})


def test_who_comes_by_a_unix_socket_is_of_this_machine_unless_a_proxy_sends_it(ends):
    for name in ("gunicorn.socket", "werkzeug.socket"):
        assert ask(is_operator, "", **{name: ends[0]})
        assert not ask(is_operator, "", headers={"X-Real-IP": "10.0.0.1"}, **{name: ends[0]})


def test_what_a_proxy_says_makes_nobody_local():
    assert not ask(is_operator, "10.0.0.1", **{ADDRESS: "127.0.0.1"})


@pytest.mark.parametrize(("role", "may"), [("admin", True), ("user", False), ("metrics", False)])
def test_with_keys_an_admin_alone_is_an_operator(role, may):
    assert ask(is_operator, **{CALLER: Caller("ann", role)}) is may
    assert ask(is_operator, "10.0.0.1", **{CALLER: Caller("ann", role)}) is may


def test_a_client_is_its_checked_key_or_else_its_address():
    unchecked = {"Authorization": "Bearer secret"}
    assert ask(share_of, "10.0.0.1", unchecked) == "address:10.0.0.1"
    assert ask(share_of, "10.0.0.1", **{ADDRESS: "1.2.3.4"}) == "address:1.2.3.4"
    assert ask(share_of, **{CALLER: Caller("ann", "user")}) == "key:ann"
    assert ask(owner_of, **{CALLER: Caller("ann", "user")}) == "key:ann"
    assert ask(owner_of, "10.0.0.1") == "@10.0.0.1"


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff:ffff:ffff:ffff", "2001:db8:1:2::/64"),
        ("2001:DB8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
    ],
)
def test_a_64_of_ipv6_has_one_share_and_each_of_its_addresses_its_own_answers(address, network):
    for by in ({"address": address}, {"address": "10.9.9.9", ADDRESS: address}):
        assert ask(share_of, **by) == f"address:{network}"
        assert ask(author_of, **by) == f"address:{address}"
        assert ask(owner_of, **by) == f"@{address}"


def test_an_unchecked_key_is_told_by_no_more_than_a_hash():
    key = ask(key_of, headers={"x-api-key": "secret"})
    assert key.startswith("key-") and len(key) == 20 and "secret" not in key
    for same in ("Bearer secret", "bearer  secret "):
        assert ask(key_of, headers={"Authorization": same}) == key
        assert ask(owner_of, "::1", {"Authorization": same}) == f"{key}@::1"
    assert ask(key_of, headers={"Authorization": "Basic secret"}) == ask(key_of) == ""


@pytest.mark.parametrize(("number", "most"), [(5, 3), (4, 2), (1, 1)])
def test_a_client_gets_half_of_the_places_and_all_clients_no_more_than_there_are(number, most):
    places = Places(number)
    assert [places.take("a") for _ in range(most)] == [None] * most
    if number > most:
        assert places.take("a").startswith(f"{most} WebSockets are open from this address")
    assert [places.take(f"b{i}") for i in range(number - most)] == [None] * (number - most)
    assert places.num_taken == number
    assert places.take("c").startswith(f"{number} WebSockets are open, which is the maximum")
    places.give_back("a")
    assert places.take("c") is None
    for name in ["a"] * (most - 1) + [f"b{i}" for i in range(number - most)] + ["c"]:
        places.give_back(name)
    assert places.num_taken == 0 and not places._taken
