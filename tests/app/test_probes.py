"""Health and version under other servers' names, and what is at the root."""

import re

import flask
import pytest

from switchyard import __version__
from switchyard.app import Switchyard
from tests.conftest import ROOT


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
def test_under_a_prefix_a_host_has_the_short_names_and_never_the_root_or_the_page(
    model_path, prefix
):
    app = flask.Flask("host")
    Switchyard(app, model=model_path, url_prefix=prefix or None)
    paths = {rule.rule for rule in app.url_map.iter_rules()}
    names = ("/models", "/messages", "/chat/completions", "/responses", "/completions")
    short = {f"{prefix}{path}" for path in (*names, "/health", "/ping", "/version")}
    assert paths & short == (short if prefix else set())
    assert f"{prefix}/v2/health/live" in paths
    assert not paths & {"/", "/favicon.ico", f"{prefix}/", f"{prefix}/favicon.ico"}
    assert not any("/ui" in path for path in paths)
