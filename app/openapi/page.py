"""The OpenAPI document, and a page that shows it."""

import importlib.resources

import flask
import werkzeug
import werkzeug.exceptions

from switchyard.app.http.body import json_response
from switchyard.app.openapi import contract

try:
    ASSETS = str(importlib.resources.files("flask_swagger_ui") / "dist")
except ModuleNotFoundError:
    ASSETS = ""

# URLs are relative to the page, because the blueprint may have any prefix.
PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <title>Switchyard</title>
  <link rel="stylesheet" href="swagger-ui.css">
  <link rel="icon" href="favicon-32x32.png">
</head>
<body>
  <div id="page"></div>
  <script src="swagger-ui-bundle.js"></script>
  <script>SwaggerUIBundle({url: "../openapi.json", dom_id: "#page"})</script>
</body>
</html>
"""

blueprint = flask.Blueprint("switchyard_docs", __name__)


@blueprint.get("/openapi.json")
@contract.needs("public")
def openapi() -> flask.Response:
    servers = [{"url": flask.request.script_root or "/"}]
    app = flask.current_app._get_current_object()  # type: ignore[attr-defined]
    return json_response({**contract.document(app), "servers": servers})


@blueprint.get("/docs")
@contract.needs("public")
def to_docs() -> werkzeug.Response:
    # Relative, because the host may have another name behind a proxy.
    return flask.redirect("docs/")


@blueprint.get("/docs/")
@contract.needs("public")
def docs() -> flask.Response:
    _check_assets()
    return flask.Response(PAGE, mimetype="text/html")


@blueprint.get("/docs/<path:name>")
@contract.needs("public")
def asset(name: str) -> flask.Response:
    _check_assets()
    return flask.send_from_directory(ASSETS, name)


def _check_assets() -> None:
    if not ASSETS:
        raise werkzeug.exceptions.NotFound("this page needs switchyard's `docs` extra")
