"""Which key may ask for what, where it may stand, and what is answered without one."""

import base64
import logging
import threading

import flask
import pytest

from switchyard.app import SettingsError, Switchyard
from switchyard.app.openapi.contract import WHO
from switchyard.app.operations.credentials import given_key
from tests.operations.conftest import KEYS, bearer, entry
from tests.scripted import ScriptedBackend

URL = "/v1/completions"
BODY = {"prompt": "x", "max_tokens": 2}
CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
MISSING = "the API key is missing or not valid"

MAY = {
    "any": ("user", "metrics", "admin"),
    "metrics": ("metrics", "admin"),
    "user": ("user", "admin"),
    "admin": ("admin",),
    "operator": ("admin",),
}
OPEN = {
    *("/", "/favicon.ico", "/ping", "/api/hello", "/openapi.json"),
    *("/docs", "/docs/", "/docs/<path:name>", "/ui/<name>"),
    *("/health", "/health/live", "/health/ready"),
    *("/v1/health/live", "/v1/health/ready", "/v2/health/live", "/v2/health/ready"),
}


@pytest.fixture
def client(make_keyed):
    return make_keyed(ScriptedBackend())


def asked(client):
    """Each route with a method, a path, and the headers that it takes to get there."""
    for rule in client.application.url_map.iter_rules():
        path = rule.rule
        for name in rule.arguments:
            path = path.replace(f"<{name}>", "x").replace(f"<path:{name}>", "x")
        headers = {"Connection": "Upgrade", "Upgrade": "websocket"} if rule.websocket else {}
        for method in sorted(rule.methods - {"OPTIONS"}):
            yield rule.rule, method, path, headers


def test_every_route_but_the_open_ones_needs_a_key(client):
    rules = {rule for rule, *_ in asked(client)}
    assert rules >= OPEN and len(rules) > 60
    elsewhere = {"environ_overrides": {"REMOTE_ADDR": "10.0.0.7"}}
    for rule, method, path, headers in asked(client):
        with client.open(path, method=method, headers=headers, **elsewhere) as response:
            if rule in OPEN:
                assert response.status_code not in (401, 403), (method, rule)
                continue
            assert response.status_code == 401, (method, rule)
            assert response.headers["WWW-Authenticate"] == 'Bearer realm="switchyard"'
            assert response.headers["x-should-retry"] == "false"


def test_a_route_that_says_nothing_is_an_admins(client, monkeypatch):
    view = client.application.view_functions["switchyard_api.switchyard_health_short.version"]
    monkeypatch.delattr(view, WHO)
    for name, status in (("ann", 403), ("root", 200)):
        assert client.get("/version", headers=bearer(name)).status_code == status


@pytest.mark.parametrize("name", ["ann", "prom", "root"])
def test_a_role_may_what_its_routes_say_and_nothing_else(client, name):
    role = {"ann": "user", "prom": "metrics", "root": "admin"}[name]
    views = client.application.view_functions
    for rule in client.application.url_map.iter_rules():
        who = getattr(views[rule.endpoint], WHO, "admin")
        is_left = rule.rule in ("/admin/drain", "/v1/model/unload", "/models/sse")
        if who == "public" or is_left or rule.arguments or rule.websocket:
            continue
        for method in sorted(rule.methods - {"OPTIONS"}):
            with client.open(rule.rule, method=method, headers=bearer(name)) as response:
                is_refused = response.status_code == 403
                assert is_refused == (role not in MAY[who]), (method, rule.rule)
                if is_refused and method != "HEAD":
                    told = response.json["error"]
                    assert response.headers["x-should-retry"] == "false"
                    if isinstance(told, str):  # Ollama's
                        continue
                    assert told["type"] == "permission_error"
                    if "code" in told:
                        assert told["code"] == "insufficient_permissions"


def basic(name, user="any"):
    pair = base64.b64encode(f"{user}:{KEYS[name]}".encode()).decode()
    return {"Authorization": f"Basic {pair}"}


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {KEYS['ann']}"},
        {"Authorization": f"bEARER  {KEYS['ann']} "},
        {"x-api-key": KEYS["ann"]},
        {"api-key": KEYS["ann"]},
        {"x-admin-key": KEYS["ann"]},
        {"x-goog-api-key": KEYS["ann"]},
        basic("ann"),
        basic("ann", ""),
        {"x-api-key": KEYS["ann"], "Authorization": f"Bearer {KEYS['ann']}"},
        {"x-api-key": "", **basic("ann")},
        {"x-api-key": KEYS["ann"], "Authorization": "Basic YW55Og=="},  # without a password
    ],
)
def test_a_key_may_stand_where_clients_put_it(client, headers):
    assert client.post(URL, json=BODY, headers=headers).status_code == 200


def test_browsers_set_blanks_between_subprotocols():
    headers = {"Sec-WebSocket-Protocol": "realtime, openai-insecure-api-key.mine, other"}
    with flask.Flask("x").test_request_context(headers=headers):
        assert given_key(flask.request) == b"mine"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {KEYS['ann']}x"},
        {"Authorization": KEYS["ann"]},
        {"Authorization": "Basic ###"},
        {"Authorization": f"Digest {KEYS['ann']}"},
        {"x-api-key": KEYS["ann"].upper()},
        {"x-api-key": "\xe4" * 20},
    ],
)
def test_all_else_is_no_key_and_gets_one_answer(client, headers):
    response = client.post(URL, json=BODY, headers=headers)
    assert response.status_code == 401
    assert response.json["error"] == {
        "message": MISSING,
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_api_key",
    }


def test_a_key_in_the_query_string_is_none(client):
    assert client.get(f"/generate?prompt=x&api_key={KEYS['ann']}").status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {**bearer("ann"), "x-api-key": KEYS["bob"]},
        {"api-key": KEYS["ann"], "x-goog-api-key": "wrong"},
        {**basic("ann"), "x-admin-key": KEYS["root"]},
    ],
)
def test_two_different_keys_are_a_mistake(client, headers):
    response = client.post(URL, json=BODY, headers=headers)
    assert response.status_code == 400
    assert response.json["error"]["message"] == "the request has two different API keys"


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [("POST", "/v1/messages", {}), ("GET", "/v1/models", {"anthropic-version": "2023-06-01"})],
)
def test_anthropics_clients_are_told_in_their_words(client, method, path, headers):
    response = client.open(path, method=method, headers=headers)
    error = {"type": "authentication_error", "message": MISSING}
    assert (response.status_code, response.json["type"]) == (401, "error")
    assert response.json["error"] == error
    headers = {**headers, "x-api-key": KEYS["prom"]}
    response = client.open(path, method=method, headers=headers)
    assert (response.status_code, response.json["error"]["type"]) == (403, "permission_error")


@pytest.mark.parametrize(
    "more", [{"disabled": True}, {"expires": "2020-01-01T00:00:00Z"}], ids=["disabled", "expired"]
)
def test_a_key_that_is_not_valid_any_more_gets_the_same_answer(make_keyed, keys_file, more):
    keys_file.write(entry("ann", **more))
    response = make_keyed(ScriptedBackend()).post(URL, json=BODY, headers=bearer("ann"))
    assert (response.status_code, response.json["error"]["message"]) == (401, MISSING)


def test_browsers_ask_without_a_key_whether_they_may(make_keyed):
    client = make_keyed(ScriptedBackend(), cors_origins=["https://a.example"])
    response = client.options(URL, headers={"Origin": "https://a.example"})
    assert response.status_code == 200
    exposed = client.post(URL, json=BODY, headers={"Origin": "https://a.example"}).headers
    assert exposed["Access-Control-Allow-Origin"] == "https://a.example"
    assert "x-ratelimit-remaining-tokens" in exposed["Access-Control-Expose-Headers"]
    assert "anthropic-ratelimit-tokens-reset" in exposed["Access-Control-Expose-Headers"]


def test_a_process_of_the_servers_machine_drains_without_a_key(make_keyed, caplog):
    drained = []
    caplog.set_level(logging.WARNING, "switchyard.audit")
    client = make_keyed(ScriptedBackend(), terminate=lambda: drained.append(True))
    elsewhere = {"environ_overrides": {"REMOTE_ADDR": "10.0.0.7"}}
    assert client.post("/admin/drain", **elsewhere).status_code == 401
    assert client.post("/admin/drain", headers=bearer("ann")).status_code == 403
    assert client.post("/admin/drain", headers=bearer("wrong")).status_code == 401
    assert drained == []
    assert client.post("/admin/drain").status_code == 202
    assert client.post("/admin/drain", headers=bearer("root"), **elsewhere).status_code == 202
    assert drained == [True, True]
    told = [message for message in caplog.messages if "drain" in message]
    assert told == ["address:127.0.0.1: drain", "key:root: drain"]


def test_tabbys_clients_are_told_their_role(client):
    for name, told in (("ann", "api"), ("root", "admin")):
        response = client.get("/v1/auth/permission", headers=bearer(name))
        assert response.json == {"permission": told}


def test_a_key_sees_and_uses_its_models_alone(make_keyed, keys_file):
    keys_file.write(entry("ann", models=["other"]), entry("bob", models=["script*"]))
    client = make_keyed(ScriptedBackend(), model_aliases={"gpt-4.1": "scripted"})
    for body in (BODY, {**BODY, "model": "scripted"}, {**BODY, "model": "gpt-4.1"}):
        response = client.post(URL, json=body, headers=bearer("ann"))
        assert response.status_code == 404
        assert response.json["error"]["code"] == "model_not_found"
        message = response.json["error"]["message"]
        assert message == "this API key may not use any of the served models"
        assert client.post(URL, json=body, headers=bearer("bob")).status_code == 200
    assert client.get("/v1/models", headers=bearer("ann")).json["data"] == []
    assert len(client.get("/v1/models", headers=bearer("bob")).json["data"]) == 1
    assert client.get("/v1/models/scripted", headers=bearer("ann")).status_code == 404


def test_a_service_with_a_wrong_key_locks_out_no_valid_key_of_its_address(client, clock, caplog):
    """All come by one gateway."""
    there = {"environ_overrides": {"REMOTE_ADDR": "10.0.0.7"}}
    with caplog.at_level(logging.WARNING, "switchyard.audit"):
        for i in range(50):
            refused = client.get("/v1/models", headers=bearer("no"), **there)
            assert refused.status_code == (401 if i < 20 else 429)
    assert refused.json["error"]["type"] == "rate_limit_error"
    assert refused.json["error"]["code"] == "too_many_failures"
    assert refused.headers["Retry-After"] == "60"
    for name, path in (("ann", "/v1/models"), ("root", "/v1/requests"), ("prom", "/metrics")):
        assert client.get(path, headers=bearer(name), **there).status_code == 200
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "address:10.0.0.7: wrong API keys: 1",
        "address:10.0.0.7: wrong API keys: 19; more are refused for 60 seconds",
    ]
    assert not any("sk-sy" in line or "no" in line.split() for line in told)
    assert client.get("/v1/models", headers=bearer("no")).status_code == 401  # of another address


def test_wrong_keys_from_all_addresses_of_a_64_count_together(client, clock):
    def status_from(address):
        there = {"environ_overrides": {"REMOTE_ADDR": address}}
        return client.get("/v1/models", headers=bearer("no"), **there).status_code

    assert [status_from(f"2001:db8::{i:x}") for i in range(21)] == [401] * 20 + [429]
    assert status_from("2001:db8:0:1::1") == 401
    assert [status_from(f"::ffff:10.0.0.{i}") for i in range(21)] == [401] * 21


def test_requests_without_a_key_are_no_wrong_ones(client):
    for _ in range(30):
        assert client.get("/v1/models").status_code == 401
    assert client.get("/v1/models", headers=bearer("ann")).status_code == 200


# While the server runs


def test_a_file_that_has_changed_is_read_within_a_second(client, keys_file, clock, caplog):
    keys_file.write(entry("ann", rpm=5), entry("new"))
    assert client.get("/v1/models", headers=bearer("bob")).status_code == 200  # not looked yet
    clock.now += 1
    with caplog.at_level(logging.WARNING, "switchyard.audit"):
        assert client.get("/v1/models", headers=bearer("bob")).status_code == 401
    assert client.get("/v1/models", headers={"x-api-key": "new"}).status_code == 200
    assert "keys reloaded: added new; removed bob, prom, root; changed ann" in caplog.text
    keys_file.write("# of last week\n", entry("ann", rpm=5) + "# the owner\n", entry("new"))
    clock.now += 1
    assert client.get("/v1/models", headers={"x-api-key": "new"}).status_code == 200
    assert caplog.messages[-1] == "server: keys reloaded: no changes"


@pytest.mark.parametrize(
    ("entries", "says"), [([entry("ann", rmp=5)], "ann: rmp: is unknown"), ([], "has no [[keys]]")]
)
def test_a_wrong_file_leaves_the_keys_as_they_were_and_says_so_once(
    client, keys_file, clock, caplog, entries, says
):
    keys_file.write(*entries)
    for _ in range(3):
        clock.now += 1
        assert client.get("/v1/models", headers=bearer("bob")).status_code == 200
    errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "the previous ones stay in use" in errors[0] and says in errors[0]
    keys_file.path.unlink()
    for _ in range(2):
        clock.now += 1
        assert client.get("/v1/models", headers=bearer("bob")).status_code == 200
    errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 2 and "No such file" in errors[1]
    keys_file.write(entry("ann"))
    clock.now += 1
    assert client.get("/v1/models", headers=bearer("bob")).status_code == 401


def test_the_file_is_looked_at_while_no_requests_come(make_keyed, keys_file, clock, monkeypatch):
    monkeypatch.setattr("switchyard.app.operations.keyring.WATCH", 0.01)
    client = make_keyed(ScriptedBackend())
    keyring = client.application.extensions["switchyard"].checks.keyring
    changed = threading.Event()
    keyring._on_change = lambda table: changed.set()
    keyring.watch()
    keys_file.write(entry("ann"))
    assert changed.wait(20)
    keyring.close()


def test_a_host_application_guards_the_apis_routes_alone(keys_file, model_path):
    host = flask.Flask("host")
    host.add_url_rule("/own", view_func=lambda: "own")
    switchyard = Switchyard(
        host, url_prefix="/llm", model=model_path, keys_file=str(keys_file.path)
    )
    client = host.test_client()
    assert client.get("/own").status_code == 200
    assert client.get("/llm/v1/models").status_code == 401
    assert client.get("/llm/health/live").status_code == 200
    assert switchyard.models.close(timeout=60)
    keys_file.write(entry("ann", rmp=1))
    with pytest.raises(SettingsError, match="ann: rmp: is unknown"):
        Switchyard(flask.Flask("other"), model=model_path, keys_file=str(keys_file.path))
