"""Which names of the server requests may carry: what a page gains that takes its own name to
this server's address (DNS rebinding).
"""

import flask
import pytest

from switchyard.app import SettingsError, Switchyard, read_settings

EVIL = "evil.example"


def status(client, host, server_name="127.0.0.1", path="/v1/models", **environ):
    environ = {"SERVER_NAME": server_name, **environ}
    return client.get(path, headers={"Host": host}, environ_overrides=environ).status_code


def test_no_browser_sends_a_request_without_a_host_or_over_a_unix_socket(make_client, ends):
    client = make_client(allowed_hosts=["llm.example.org"])
    assert status(client, EVIL, **{"gunicorn.socket": ends[0]}) == 200
    assert client.get("/v1/models", environ_overrides={"HTTP_HOST": None}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/health/live", "/no/such/path", "/openapi.json"])
def test_on_loopback_a_foreign_name_is_refused_and_told_the_setting(make_client, path):
    response = make_client().get(path, headers={"Host": f"{EVIL}:8000"})
    assert response.status_code == 403
    message = response.json["error"]["message"]
    assert "allowed_hosts" in message and f"'{EVIL}'" in message


@pytest.mark.parametrize(
    ("expected", "host", "server_name"),
    [
        *(
            (200, host, name)
            for host in ("localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:8000", "[::1]:80")
            for name in ("127.0.0.1", "::1")
        ),
        *((200, "[::1]", name) for name in ("127.0.0.1", "::1")),
        # What only looks like its own name:
        *((403, f"localhost{mark}evil.example", "127.0.0.1") for mark in ".,"),
        *((403, host, "127.0.0.1") for host in ("[::1", ":80")),
        # Each address of loopback is one; on others any name is taken.
        *((403, EVIL, name) for name in ("localhost", "127.0.0.2", "::1")),
        *((200, EVIL, name) for name in ("0.0.0.0", "::", "192.168.0.7", "waitress.invalid")),
    ],
)
def test_on_loopback_its_own_names_are_taken_alone(make_client, expected, host, server_name):
    assert status(make_client(), host, server_name) == expected


def test_an_asterisk_stands_for_any(make_client):
    assert status(make_client(allowed_hosts=["*"]), EVIL) == 200


def test_names_that_are_given_are_the_only_ones(make_client):
    client = make_client(allowed_hosts=["LLM.example.org", "[fd00::1]"])
    for server_name in ("127.0.0.1", "0.0.0.0"):
        taken = ["llm.example.org", "llm.EXAMPLE.org:443", "[fd00::1]:80"]
        assert [status(client, host, server_name) for host in taken] == [200] * 3
        assert status(client, "localhost", server_name) == 403


@pytest.mark.parametrize("name", ["http://a.example", "a.example:8000", "::1", "a b", ""])
def test_what_no_host_can_be_is_refused_at_the_start(name):
    with pytest.raises(SettingsError, match=r"allowed_hosts: .*without a port"):
        read_settings(allowed_hosts=[name])


@pytest.mark.parametrize("given", [{}, {"allowed_hosts": ["llm.example.org"]}])
def test_in_another_application_names_are_its_business_unless_given(model_path, given):
    app = flask.Flask("host")
    app.add_url_rule("/", view_func=lambda: "its own")
    seen = []
    before = lambda: seen.append(flask.request.host) or ("admitted", 200)  # noqa: E731
    Switchyard(app, model=model_path, url_prefix="/llm", before_request=before, **given)
    client, path = app.test_client(), "/llm/health/live"
    assert status(client, EVIL, path=path) == (403 if given else 200)
    assert len(seen) == (not given)  # a refusal doesn't ask the login of the application
    assert status(client, "llm.example.org", path=path) == 200
    assert status(client, EVIL, path="/") == 200
