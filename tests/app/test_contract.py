"""/openapi.json and /docs/: what the server says of itself."""

import json
import re
import urllib.parse

import flask
import jsonschema_rs
import pytest

from switchyard.app.openapi import contract
from switchyard.engine.messages import ModelInfo
from tests.scripted import ScriptedBackend

# What only shows the contract.
OWN = {f"switchyard_api.switchyard_docs.{name}" for name in ("openapi", "to_docs", "docs", "asset")}
OWN |= {f"switchyard_api.switchyard_ui.{name}" for name in ("asset", "watch")}  # only the page asks


@pytest.fixture
def client(make_client):
    return make_client()


@pytest.fixture
def document(client):
    return client.get("/openapi.json").json


def operations(document):
    return [one for methods in document["paths"].values() for one in methods.values()]


def test_every_route_has_a_contract(client):
    app = client.application
    declared = {rule.endpoint for rule, _ in contract.declared(app)}
    routes = {rule.endpoint for rule in app.url_map.iter_rules() if not rule.websocket}
    assert routes - OWN == declared


def test_the_document_tells_all_of_each_operation(document):
    assert document["openapi"].startswith("3.1")
    for path, methods in document["paths"].items():
        arguments = set(re.findall(r"{(\w+)}", path))
        for operation in methods.values():
            assert operation["summary"], path
            assert operation["responses"].keys() >= {"500"}
            in_path = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
            assert in_path == arguments
    identifiers = [one["operationId"] for one in operations(document)]
    assert len(identifiers) == len(set(identifiers))  # by which the page finds what it sends


def test_the_document_says_of_which_refusals_the_answer_tells_when_to_come_again(document):
    told = {
        (status, "Retry-After" in response["headers"])
        for operation in operations(document)
        for status, response in operation["responses"].items()
    }
    assert {status for status, is_told in told if is_told} == {"429", "503", "529"}
    assert {status for status, is_told in told if not is_told}.isdisjoint({"429", "503", "529"})


def test_the_document_admits_what_the_server_takes(document):
    completion = document["components"]["schemas"]["Completion"]
    assert completion["required"] == ["prompt"]
    assert completion["additionalProperties"] == {"type": "null"}
    properties = completion["properties"]
    kinds = [kind["type"] for kind in properties["prompt"]["anyOf"]]
    assert set(kinds) == {"string", "array"}
    assert {"type": "null"} in properties["stop"]["anyOf"]
    assert properties["store"]["enum"] == [False, True, None]
    assert properties["top_p"]["default"] == 1.0


def test_a_hosts_own_routes_are_not_in_the_document(client):
    host = flask.Flask("host")
    host.add_url_rule("/own", view_func=lambda: "own")
    host.register_blueprint(client.application.blueprints["switchyard_api"], url_prefix="/llm")
    visitor = host.test_client()
    paths = visitor.get("/llm/openapi.json").json["paths"]
    assert "/llm/v1/completions" in paths and "/own" not in paths
    assert visitor.get("/llm/docs/").status_code == 200


def test_the_docs_page_needs_nothing_from_elsewhere(client):
    assert client.get("/docs").headers["Location"] == "docs/"
    page = client.get("/docs/").text
    for address in re.findall(r'(?:src|href|url)[=:] ?"([^"]+)"', page):
        assert "//" not in address
        with client.get(urllib.parse.urljoin("/docs/", address)) as response:
            assert response.status_code == 200, address
    assert client.get("/docs/nothing.js").status_code == 404


def test_each_body_has_an_example_that_its_route_takes(make_client, with_tokens):
    names = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
    backend = ScriptedBackend(info=ModelInfo(2048, 5000, 256, 64, "scripted"))
    client = make_client(backend, path=with_tokens(names))
    document = client.get("/openapi.json").json
    declared = {
        contract.PATH_ARGUMENT.sub(r"{\1}", rule.rule): own
        for rule, own in contract.declared(client.application)
        if own.body
    }
    seen = set()
    for path, methods in document["paths"].items():
        bodies = [one.get("requestBody", {"content": {}}) for one in methods.values()]
        for media_type, content in [item for body in bodies for item in body["content"].items()]:
            example = content["example"]
            definitions = {**content["schema"], "components": document["components"]}
            assert jsonschema_rs.is_valid(definitions, example), path
            seen.add(path)
            if declared[path].who == "operator":  # what is loaded: their own tests ask them
                continue
            given = {"json": example} if media_type == contract.JSON else {"data": example}
            with client.post(path, **given) as response:
                assert response.status_code == 200, (path, response.json)
                assert "X-Switchyard-Ignored" not in response.headers, path
    assert seen == declared.keys() and len(seen) > 15


def test_a_query_as_the_page_fills_it_in_is_taken(client, document):
    """With examples, and with the defaults of all else."""
    query = {}
    for parameter in document["paths"]["/generate"]["get"]["parameters"]:
        default = parameter.get("schema", {}).get("default")
        value = parameter.get("example", default)
        assert value is not None or not parameter["required"], parameter["name"]
        if "content" in parameter:  # else the page makes an object up by the schema
            assert parameter["content"][contract.JSON]["example"] is None
        elif value is not None:
            is_text = isinstance(value, str | list)
            query[parameter["name"]] = value if is_text else json.dumps(value)
    assert len(query) > 20
    response = client.get("/generate", query_string=query)
    assert response.status_code == 200, response.json


def test_openai_s_routes_come_first_and_the_operator_s_last(document):
    tags = [tag["name"] for tag in document["tags"]]
    firsts = [next(iter(methods.values())) for methods in document["paths"].values()]
    assert list(dict.fromkeys(operation["tags"][0] for operation in firsts)) == tags
    assert (tags[:2], tags[-1]) == (["openai", "responses"], "admin")
    paths = list(document["paths"])
    assert {"/v1/models", "/v1/chat/completions"} <= set(paths[:6])
    assert {"/admin/drain", "/models/unload"} <= set(paths[-7:])


@pytest.mark.parametrize(("root", "prefix"), [("", None), ("", "/llm"), ("/app", "/llm")])
def test_the_server_and_a_path_are_where_the_route_is(client, root, prefix):
    """Under a prefix of the blueprint's, and where the whole application is under one."""
    host = flask.Flask("host")
    host.extensions = client.application.extensions
    host.register_blueprint(client.application.blueprints["switchyard_api"], url_prefix=prefix)
    at = {"environ_overrides": {"SCRIPT_NAME": root}}
    document = host.test_client().get(f"{prefix or ''}/openapi.json", **at).json
    [server] = document["servers"]
    address = urllib.parse.urljoin("http://localhost/", server["url"]).rstrip("/")
    [path] = [path for path in document["paths"] if path.endswith("/v1/models")]
    assert f"{address}{path}" == f"http://localhost{root}{prefix or ''}/v1/models"
    assert host.test_client().get(path, **at).json["object"] == "list"
