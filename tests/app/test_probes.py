"""Health, a drain by request, version, and what is at the root."""

import re

import flask
import pytest

from switchyard import __version__, engine
from switchyard.app import Switchyard
from switchyard.engine.messages import LoadProgress
from tests.conftest import ROOT
from tests.scripted import ScriptedBackend

# At its own path, and as load balancers and other servers' clients ask.
READY = ("/health/ready", "/health", "/ping", "/v1/health/ready", "/v2/health/ready")


def test_live_answers_while_the_model_loads_and_ready_does_not(loading):
    client = loading()
    assert client.get("/health/live").json == {"status": "live"}
    assert [client.get(path).status_code for path in READY] == [503] * len(READY)
    told = {"status": "unready", "models": {"scripted": "loading"}, "progress": {}}
    told["reasons"] = {"scripted": "the model is loading"}
    assert client.get("/health/ready").json == told
    client.models.get().deliver([LoadProgress(0.41999)])
    assert client.get("/health/ready").json == {**told, "progress": {"scripted": 0.42}}
    client.backend.opening.set()
    assert client.models.wait_until_loaded(20)
    assert [client.get(path).status_code for path in READY] == [200] * len(READY)
    assert client.get("/health/ready").json == {"status": "ready", "models": {"scripted": "ready"}}
    client.models.drain()
    assert [client.get(path).status_code for path in READY] == [503] * len(READY)


def test_a_load_that_has_failed_is_told_and_awaited_no_longer(make_client):
    backend = ScriptedBackend(open_error=engine.ModelError("no weights"))
    client = make_client(backend, wait=False)
    assert not client.models.wait_until_loaded(20)
    assert client.get("/health/ready").json["reasons"] == {"scripted": "no weights"}


def test_a_drain_by_request_refuses_at_once_and_ends_the_server(make_client):
    ended = []
    client = make_client(terminate=lambda: ended.append(True))
    assert client.post("/admin/drain").status_code == 202
    assert ended == [True]
    assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 503


@pytest.mark.parametrize(
    ("more", "status"), [({}, 501), ({"environ_base": {"REMOTE_ADDR": "10.0.0.1"}}, 403)]
)
def test_a_server_that_may_or_can_not_be_told_to_end_goes_on(client, more, status):
    assert client.post("/admin/drain", **more).status_code == status
    assert client.get("/health/ready").status_code == 200


def test_the_version_is_that_of_the_package_and_the_newest_of_the_changelog(client):
    [newest, *_] = re.findall(r"^## (\d\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest == __version__
    assert client.get("/version").json == {"version": __version__}
    root = client.get("/", headers={"Accept": "application/json"})
    assert root.json == {"name": "switchyard", "version": __version__}
    assert client.get("/openapi.json").json["info"]["version"] == __version__


def test_the_root_answers_head_and_has_no_icon(loading):
    client = loading()
    for path in ("/", "/api/hello"):
        response = client.head(path)
        assert (response.status_code, response.data) == (200, b"")
    assert client.get("/favicon.ico").status_code == 204


def test_the_root_of_a_host_application_is_its_own(model_path):
    """Also where its views are added behind the extension."""
    app = flask.Flask("host")
    Switchyard(app, model=model_path)
    paths = ("/", "/favicon.ico", "/health", "/ping", "/version", "/api/hello")
    for path in paths:
        app.add_url_rule(path, path, view_func=lambda: "the host's")
    assert [app.test_client().get(path).text for path in paths] == ["the host's"] * len(paths)


@pytest.mark.parametrize("prefix", ["", "/llm"])
def test_under_a_prefix_a_host_has_the_short_names_and_never_the_root_or_page(model_path, prefix):
    app = flask.Flask("host")
    Switchyard(app, model=model_path, url_prefix=prefix or None)
    paths = {rule.rule for rule in app.url_map.iter_rules()}
    names = ("/models", "/messages", "/chat/completions", "/responses", "/completions")
    short = {f"{prefix}{path}" for path in (*names, "/health", "/ping", "/version")}
    assert paths & short == (short if prefix else set())
    assert f"{prefix}/v2/health/live" in paths
    assert not paths & {"/", "/favicon.ico", f"{prefix}/", f"{prefix}/favicon.ico"}
    assert not any("/ui" in path for path in paths)
