"""/openapi.json and /docs/: what the server says of itself."""

import re
import urllib.parse

import flask
import pytest

from switchyard.app.openapi import contract
from tests.scripted import ScriptedBackend

# What only shows the contract.
OWN = {f"switchyard.switchyard_docs.{name}" for name in ("openapi", "to_docs", "docs", "asset")}


@pytest.fixture
def client(make_client):
    return make_client(ScriptedBackend())


def test_every_route_has_a_contract(client):
    declared = {rule.endpoint for rule, _ in contract.declared(client.application)}
    routes = {
        rule.endpoint for rule in client.application.url_map.iter_rules() if not rule.websocket
    }
    assert routes - OWN == declared


def test_the_document_tells_all_of_each_operation(client):
    document = client.get("/openapi.json").json
    assert document["openapi"].startswith("3.1")
    for path, methods in document["paths"].items():
        arguments = set(re.findall(r"{(\w+)}", path))
        for operation in methods.values():
            assert operation["summary"], path
            assert operation["responses"].keys() >= {"500"}
            in_path = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
            assert in_path == arguments


def test_the_document_admits_what_the_server_takes(client):
    schemas = client.get("/openapi.json").json["components"]["schemas"]
    completion = schemas["Completion"]
    assert completion["required"] == ["prompt"]
    kinds = [kind["type"] for kind in completion["properties"]["prompt"]["anyOf"]]
    assert set(kinds) == {"string", "array"}
    assert {"type": "null"} in completion["properties"]["stop"]["anyOf"]
    assert completion["properties"]["store"]["enum"] == [False, None]
    assert completion["additionalProperties"] == {"type": "null"}
    assert completion["properties"]["top_p"]["default"] == 1.0


def test_a_hosts_own_routes_are_not_in_the_document(client):
    host = flask.Flask("host")
    host.add_url_rule("/own", view_func=lambda: "own")
    host.register_blueprint(client.application.blueprints["switchyard"], url_prefix="/llm")
    paths = host.test_client().get("/llm/openapi.json").json["paths"]
    assert "/llm/v1/completions" in paths and "/own" not in paths
    assert host.test_client().get("/llm/docs/").status_code == 200


def test_the_docs_page_needs_nothing_from_elsewhere(client):
    assert client.get("/docs").headers["Location"] == "docs/"
    page = client.get("/docs/").text
    for address in re.findall(r'(?:src|href|url)[=:] ?"([^"]+)"', page):
        assert "//" not in address
        with client.get(urllib.parse.urljoin("/docs/", address)) as response:
            assert response.status_code == 200, address
    assert client.get("/docs/nothing.js").status_code == 404
