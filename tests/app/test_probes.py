"""Health and version under other servers' names, and what is at the root."""

import re

import flask
import pytest

from switchyard import __version__, engine
from switchyard.app import Settings, Switchyard, create_app
from switchyard.app.blueprint import open_models
from switchyard.engine.links.thread import EngineThread
from tests.conftest import ROOT
from tests.scripted import ScriptedBackend

READY = ("/health", "/ping", "/v1/health/ready", "/v2/health/ready")


@pytest.fixture
def loading(make_client):
    """A client of a server whose model loads until the end of the test."""
    backend = ScriptedBackend()
    backend.opening.clear()
    yield make_client(backend, wait=False)
    backend.opening.set()


@pytest.mark.parametrize("path", READY)
def test_balancers_hear_503_while_the_model_loads_and_then_200(make_client, path):
    backend = ScriptedBackend()
    backend.opening.clear()
    client = make_client(backend, wait=False)
    assert client.get(path).status_code == 503
    backend.opening.set()
    assert client.models.wait_until_loaded(20)
    assert client.get(path).status_code == 200
    client.models.drain()
    assert client.get(path).status_code == 503


@pytest.fixture
def several(model_path):
    """A client of a server with a model that is ready, one that loads until `opening` is set, and
    one on demand.
    """
    slow = ScriptedBackend()
    slow.opening.clear()
    backends = {"first": ScriptedBackend(), "second": slow}
    tables = [{"model": model_path, "name": name} for name in backends]
    tables.append({"model": model_path, "name": "third", "load": "demand"})
    settings = Settings(models=tables)
    models = open_models(
        settings,
        open=lambda config: engine.Engine(
            config, lambda d: EngineThread(config, lambda: backends[config.name], d)
        ),
    )
    models.start()
    assert models.get("first").wait_until_loaded(20)
    client = create_app(settings, models).test_client()
    client.models, client.opening = models, slow.opening
    yield client
    slow.opening.set()
    assert models.close(timeout=20)


def test_each_model_that_loads_with_the_server_counts(several):
    told = several.get("/health/ready")
    states = {"first": "ready", "second": "loading", "third": "unloaded"}
    assert (told.status_code, told.json["models"]) == (503, states)
    assert told.json["reasons"] == {"second": "the model is loading"}
    several.opening.set()
    assert several.models.wait_until_loaded(20)
    for path in ("/health/ready", *READY):
        assert several.get(path).status_code == 200


def test_a_balancer_is_told_when_to_come_back(loading):
    for path in ("/health", "/health/ready", "/v1/health/ready", "/v2/health/ready"):
        assert loading.get(path).headers["Retry-After"] == "1"


def test_health_has_the_words_of_llama_cpp(loading, make_client):
    assert loading.get("/health").json == {
        "error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}
    }
    ready = make_client(ScriptedBackend())
    assert ready.get("/health").json == {"status": "ok"}
    ready.models.drain()
    assert "accepts no new ones" in ready.get("/health").json["error"]["message"]


def test_ping_has_no_body(loading):
    response = loading.get("/ping")
    assert (response.status_code, response.data) == (503, b"")
    assert response.mimetype == "text/plain"


def test_other_servers_words_for_live_and_ready(loading, make_client):
    live = {"object": "health.response", "message": "Service is live.", "status": "live"}
    assert loading.get("/v1/health/live").json == live
    assert loading.get("/v2/health/live").json == {"live": True}
    assert loading.get("/v2/health/ready").json == {"ready": False}
    ready = make_client(ScriptedBackend())
    assert ready.get("/v1/health/ready").json["message"] == "Service is ready."
    assert ready.get("/v2/health/ready").json == {"ready": True}


def test_the_version_is_that_of_the_package_and_the_newest_of_the_changelog(make_client):
    [newest, *_] = re.findall(r"^## (\d\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest == __version__
    client = make_client(ScriptedBackend())
    assert client.get("/version").json == {"version": __version__}
    root = client.get("/", headers={"Accept": "application/json"})
    assert root.json == {"name": "switchyard", "version": __version__}
    assert client.get("/openapi.json").json["info"]["version"] == __version__


def test_the_root_answers_head_and_has_no_icon(loading):
    for path in ("/", "/api/hello"):
        response = loading.head(path)
        assert (response.status_code, response.data) == (200, b"")
    assert loading.get("/favicon.ico").status_code == 204


def test_the_root_of_a_host_application_is_its_own(model_path):
    """Also where its views are added behind the extension."""
    app = flask.Flask("host")
    Switchyard(app, model=model_path)
    paths = ("/", "/favicon.ico", "/health", "/ping", "/version", "/api/hello")
    for path in paths:
        app.add_url_rule(path, path, view_func=lambda: "the host's")
    assert [app.test_client().get(path).text for path in paths] == ["the host's"] * len(paths)


def test_under_a_prefix_the_short_names_are_there_and_the_root_is_not(model_path):
    app = flask.Flask("host")
    Switchyard(app, model=model_path, url_prefix="/llm")
    paths = {rule.rule for rule in app.url_map.iter_rules()}
    assert {"/llm/health", "/llm/ping", "/llm/version", "/llm/v2/health/live"} <= paths
    assert not paths & {"/", "/favicon.ico", "/llm/", "/llm/favicon.ico", "/health"}
