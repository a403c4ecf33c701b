"""Client mode's connections: kept, lost, of each process; and what is not loaded."""

import os
import ssl
import subprocess

import flask
import pytest

from switchyard import engine
from switchyard.app import BadRequest, SettingsError, Switchyard
from switchyard.app.host.upstream import RETRY
from tests.app.client_mode.conftest import BEGUN, error, text
from tests.conftest import run_code


def test_neither_a_proxy_of_the_environment_nor_its_passwords_are_used(
    upstream, make_remote, monkeypatch, tmp_path
):
    """Which are about what the host application itself asks of the internet."""
    passwords = tmp_path / "netrc"
    passwords.write_text("machine 127.0.0.1 login somebody password secret\n")
    passwords.chmod(0o600)
    monkeypatch.setenv("NETRC", str(passwords))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    first, proxy = upstream(text("a", "b")), upstream(error(502, "proxied"))
    monkeypatch.setenv("http_proxy", proxy.url)
    app = make_remote(first.url, key="own")
    assert app.switchyard.generate("x").text == "ab"
    assert (first.told("Authorization"), proxy.asked) == (["Bearer own"], [])


@pytest.mark.parametrize("given", ["arguments", "application", "environment"])
def test_server_and_key_are_the_arguments_then_the_application_s(upstream, monkeypatch, given):
    servers = {name: upstream(text(name)) for name in ("environment", "application", "arguments")}
    app, more = flask.Flask("host"), {}
    monkeypatch.setenv("SWITCHYARD_URL", servers["environment"].url)
    monkeypatch.setenv("SWITCHYARD_KEY", "environment")
    if given != "environment":
        app.config.update(SWITCHYARD_URL=servers["application"].url, SWITCHYARD_KEY="application")
    if given == "arguments":
        more = {"url": servers["arguments"].url, "key": "arguments"}
    switchyard = Switchyard(app, **more)
    assert switchyard.generate("x").text == given
    assert servers[given].told("Authorization") == [f"Bearer {given}"]
    switchyard.close()


def test_one_extension_serves_the_current_application_else_its_last(upstream):
    first, last = upstream(text("first")), upstream(text("last"))
    switchyard, apps = Switchyard(), []
    for server in (first, last):
        apps.append(flask.Flask("host"))
        apps[-1].config["SWITCHYARD_URL"] = server.url
        switchyard.init_app(apps[-1])
    with apps[0].app_context():
        assert switchyard.generate("x").text == "first"
        switchyard.close()
    with flask.Flask("without it").app_context():
        assert switchyard.generate("x").text == "last"
    switchyard.close()


def test_a_server_is_asked_by_tls(upstream, make_remote, tmp_path, monkeypatch):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=here"]
    new += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run(new, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = upstream(None, text("a"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = server.url.replace("http:", "https:")
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    with pytest.raises(engine.Dead):  # nothing vouches for it
        make_remote(url).switchyard.generate("x")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    app = make_remote(url)
    with pytest.raises(engine.Closed):  # by a fresh connection, so it is not asked again
        app.switchyard.generate("x")
    assert app.switchyard.generate("x").text == "a"


def test_connections_are_used_again(upstream, make_remote):
    server = upstream(text("a"), error(400, "invalid_value"), text("b"))
    app = make_remote(server.url)
    assert app.switchyard.generate("x").text == "a"
    with pytest.raises(BadRequest):
        app.switchyard.generate("x")
    assert app.switchyard.generate("x").text == "b"
    assert len(server.connections) == 1


def test_a_connection_that_the_server_has_ended_meanwhile_is_no_error(remote):
    switchyard = remote(text("a"), None, text("b"))
    assert [switchyard.generate("x").text for _ in range(2)] == ["a", "b"]


def test_what_a_fresh_connection_has_carried_is_not_asked_again(upstream, make_remote):
    server = upstream(None, text("b"))
    app = make_remote(server.url)
    with pytest.raises(engine.Closed) as caught:
        app.switchyard.generate("x")
    assert str(caught.value) == "the models' server has closed the connection"
    assert len(server.asked) == 1


def test_a_fork_has_connections_of_its_own(upstream, make_remote):
    server = upstream(text("a"), text("b"), text("c"))
    app = make_remote(server.url)
    assert app.switchyard.generate("x").text == "a"
    pid = os.fork()
    if pid == 0:
        os._exit(app.switchyard.generate("x").text != "b")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert app.switchyard.generate("x").text == "c"
    assert len(server.connections) == 2


def test_close_ends_the_connections_that_carry_nothing(upstream, make_remote):
    server = upstream((200, {"Content-Length": len(BEGUN) + 9}, BEGUN), text("b"))
    switchyard = make_remote(server.url).switchyard
    with switchyard.stream("x") as stream:
        assert next(stream) == "a"
        [first] = server.connections
        assert switchyard.generate("x").text == "b"
        switchyard.close()
        assert {server.ended.get(timeout=20)} == server.connections - {first}


def test_a_key_that_no_header_can_hold_is_an_error_that_does_not_tell_it(make_remote, caplog):
    app = make_remote("http://127.0.0.1:1", key="secret\nkey")
    with pytest.raises(engine.Dead, match="request to the models' server failed") as caught:
        app.switchyard.generate("x")
    assert caught.value.retry_after == RETRY
    assert "InvalidHeader" in caplog.text and "secret" not in caplog.text


def test_what_was_closed_begins_anew_by_start(behind):
    app, _ = behind()
    with app.switchyard:
        app.switchyard.generate("x", max_tokens=1)
    with pytest.raises(engine.Dead, match="closed"):
        app.switchyard.generate("x")
    app.switchyard.start()
    assert app.switchyard.generate("x", max_tokens=1).text == "0 "


def test_settings_of_models_have_no_effect_and_are_refused(make_remote):
    with pytest.raises(SettingsError, match="model has no effect") as caught:
        make_remote("http://127.0.0.1:1", model="/models/mine")
    assert caught.value.name == "model"
    for url in ("127.0.0.1:8000", "http://", "ftp://a", "http://a?x=1", "http://a/v1/"):
        with pytest.raises(SettingsError, match="url"):
            make_remote(url)
    with pytest.raises(RuntimeError, match="not in this process"):
        make_remote("http://127.0.0.1:1").switchyard.models.get()


def test_no_engine_is_there():
    run_code(
        "import flask, sys, threading\n"
        "from switchyard import Switchyard, SwitchyardError\n"
        "switchyard = Switchyard(flask.Flask('x'), url='http://127.0.0.1:1', url_prefix='/llm')\n"
        "try: switchyard.generate('x')\n"
        "except SwitchyardError as error: assert 'reached' in str(error), error\n"
        "else: raise AssertionError('nobody listens there')\n"
        "assert not {'torch', 'exllamav2'} & set(sys.modules)\n"
        "assert threading.active_count() == 1"
    )
