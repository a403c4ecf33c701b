"""A host application whose own handlers answer every error with a page: the API's stay JSON."""

import re

import flask
import pytest
import werkzeug.exceptions

from switchyard import engine
from switchyard.app import ClientGone, Switchyard

RAISE = "X-Raise"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "PROPFIND")


def fail():
    """Raises the error whose status a header names."""
    status = int(flask.request.headers.get(RAISE, 0))
    if status in werkzeug.exceptions.default_exceptions:
        flask.abort(status)
    if status == 499:
        raise ClientGone
    if status == 529:
        raise engine.Loading("later")


@pytest.fixture(params=[None, "/llm"])
def host(request, model_path):
    app = flask.Flask("host")

    def page(error):
        return "<p>the host's own page", getattr(error, "code", 500)

    for error in (*werkzeug.exceptions.default_exceptions, Exception):
        app.register_error_handler(error, page)
    app.add_url_rule(f"{request.param or ''}/mine/", view_func=lambda: "mine", endpoint="mine")
    settings = {"url_prefix": request.param, "before_request": fail, "model": model_path}
    with Switchyard(app, device="cpu", **settings):
        yield app.test_client(), request.param or ""


def operations(client, prefix):
    document = client.get(f"{prefix}/openapi.json").json
    for path, methods in document["paths"].items():
        plain = re.sub("{[^}]+}", "x", path)
        for method, operation in methods.items():
            yield plain, method.upper(), operation["responses"]


def check(response, status):
    assert response.status_code == status, response.text
    assert response.mimetype == "application/json"
    assert response.json.get("error") or response.json.get("detail"), response.json


def test_each_declared_error_of_each_route_is_the_apis_own(host):
    client, prefix = host
    tried = set()
    for path, method, responses in operations(client, prefix):
        for status in {*map(int, responses)} - {414}:  # the HTTP server's own
            if status >= 400:
                check(client.open(path, method=method, headers={RAISE: str(status)}), status)
                tried.add(status)
    assert tried > {400, 404, 413, 415, 429, 499, 500, 501, 503, 529}


def test_other_methods_of_each_route_are_refused_by_the_api(host):
    client, prefix = host
    paths = {}
    for path, method, _ in operations(client, prefix):
        paths.setdefault(path, set()).add(method)
    for path, allowed in paths.items():
        for method in {*METHODS} - allowed:
            response = client.open(path, method=method)
            if response.status_code != 400:  # a WebSocket's path
                check(response, 405)
                assert allowed <= {*response.headers["Allow"].split(", ")}


def test_what_takes_handshakes_alone_says_so(host):
    client, prefix = host
    response = client.get(f"{prefix}/v1/stream")
    check(response, 400)
    assert response.json["error"]["code"] == "invalid_handshake"


def test_addresses_of_no_route_are_the_apis_below_its_prefix_alone(host):
    client, prefix = host
    for method in METHODS if prefix else ():
        check(client.open(f"{prefix}/v1/nothing", method=method), 404)
    for path in ("/nothing", "/v1/nothing", f"{prefix}-nothing", "/"):
        response = client.get(path)
        assert (response.status_code, response.mimetype) == (404, "text/html")
    assert client.get(f"{prefix}/mine/").text == "mine"
    assert client.get(f"{prefix}/mine").status_code == 308
