"""Do answers have what /openapi.json says of them, and nothing else?"""

import functools

import flask
import jsonschema_rs

from switchyard.app.openapi.contract import PATH_ARGUMENT, document


def close(api):
    """Have a field of an answer that the document lacks be a fault, which clients needn't mind."""
    schemas = api["components"]["schemas"]
    pending = [
        content.get("schema", {})
        for path in api["paths"].values()
        for operation in path.values()
        for response in operation["responses"].values()
        for content in response.get("content", {}).values()
    ]
    seen = set()
    while pending:
        match pending.pop():
            case {"$ref": str(reference)} if reference not in seen:
                seen.add(reference)
                schema = schemas[reference.rpartition("/")[2]]
                if "properties" in schema:
                    schema.setdefault("additionalProperties", False)
                pending.append(schema)
            case dict(schema):
                pending += schema.values()
            case list(items):
                pending += items


class Witness:
    """Called with every answer of an application; `faults` are those that are not as it says."""

    def __init__(self):
        self.faults = []

    def __call__(self, response):
        rule, method = flask.request.url_rule, flask.request.method.lower()
        if rule is not None and method not in ("head", "options"):
            path = PATH_ARGUMENT.sub(r"{\1}", rule.rule)
            self.faults += _faults(path, method, response)
        return response


def _faults(path, method, response):
    api = _api()
    if path not in api["paths"]:
        return  # of the documentation
    answer = api["paths"][path][method]["responses"].get(str(response.status_code))
    where = f"{method} {path}: {response.status_code} {response.mimetype}"
    if answer is None or response.mimetype not in answer.get("content", {response.mimetype}):
        yield f"{where} is not in the document"
    elif response.is_json and not response.is_streamed:
        for error in _validator(path, method, str(response.status_code)).iter_errors(response.json):
            yield f"{where}: {error.message[:500]}"


@functools.cache
def _api():
    api = document(flask.current_app._get_current_object())
    close(api)
    return api


@functools.cache
def _validator(path, method, status):
    api = _api()
    own = api["paths"][path][method]["responses"][status]["content"]["application/json"]["schema"]
    return jsonschema_rs.validator_for({**own, "components": api["components"]})
