"""The OpenAPI document of routes that have all that a contract may say."""

import json

import flask
import pydantic
import pytest

from switchyard.app.formats.llamacpp.shapes import LlamaCppBody, LlamaCppChunk
from switchyard.app.openapi.contract import FORM, JSON, REPEATABLE, declares, document


class Shape(pydantic.BaseModel):
    sides: int


class Ask(pydantic.BaseModel):
    text: str
    shape: Shape | None = None


class Look(pydantic.BaseModel):
    name: str
    shape: Shape | None = None
    any: object = pydantic.Field(None, description="Anything.")


class Item(pydantic.BaseModel):
    letter: str


@pytest.fixture
def told():
    """The operations of three routes, by name, and the whole document."""
    blueprint = flask.Blueprint("switchyard_own_more", __name__)

    @blueprint.post("/things/<int:number>/<name>")
    @declares(
        {200: Item},
        body=Ask,
        is_form=True,
        streams={"text/event-stream": Item, "application/x-ndjson": Item, "text/plain": str},
        errors=(404, 503),
        example={"text": "x"},
    )
    def make(number, name):
        """Makes a thing.

        Only once.
        """

    @blueprint.get("/things")
    @declares({200: Item}, query=Look, example={"name": "x"}, who="public")
    def look():
        """Looks."""

    def repeat():
        """Repeats."""

    setattr(repeat, REPEATABLE, True)
    blueprint.post("/again")(declares({200: Item}, body=Ask, errors=(404,))(repeat))
    app = flask.Flask("host")
    app.register_blueprint(blueprint)
    whole = document(app)
    operations = [one for path in whole["paths"].values() for one in path.values()]
    return {one["operationId"]: one for one in operations}, whole


def ref(name):
    return {"$ref": f"#/components/schemas/{name}"}


def test_an_operation_has_its_texts_path_and_body(told):
    make = told[0]["make"]
    texts = {"summary": "Makes a thing", "description": "Only once.", "tags": ["own"]}
    assert make | texts == make
    assert make["parameters"] == [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in ("name", "number")
    ]
    schema, example = ref("Ask"), {"text": "x"}
    form = {"schema": schema, "encoding": {"shape": {"contentType": JSON}}, "example": example}
    content = {JSON: {"schema": schema, "example": example}, FORM: form}
    assert make["requestBody"] == {"required": True, "content": content}
    assert "security" not in make
    assert "description" not in told[0]["look"]


def test_a_stream_is_told_by_its_items(told):
    content = told[0]["make"]["responses"]["200"]["content"]
    item = {"anyOf": [ref("Item"), ref("ErrorBody")]}
    body = {"type": "string", "contentMediaType": JSON, "contentSchema": item}
    data = {"anyOf": [{"const": "[DONE]"}, body]}
    event = {"type": "object", "properties": {"data": data}, "required": ["data"]}
    assert content == {
        JSON: {"schema": ref("Item")},
        "text/event-stream": {"schema": event},
        "application/x-ndjson": {"schema": {"type": "string"}, "x-item-schema": item},
        "text/plain": {"schema": {"type": "string"}},
    }


def test_a_query_is_told_parameter_by_parameter(told):
    look = told[0]["look"]
    name, shape, anything = look["parameters"]
    assert (name["in"], name["required"], name["example"]) == ("query", True, "x")
    assert name["schema"]["type"] == "string"
    assert not shape["required"] and "example" not in shape and "schema" not in shape
    assert shape["content"][JSON]["example"] is None
    assert anything["schema"]["description"] == "Anything."
    assert look["security"] == []
    assert "content" not in look["responses"]["414"]  # HTML, of the HTTP server


def test_each_route_has_the_refusals_of_its_input_its_key_and_its_own(told):
    refusals = {
        name: [int(status) for status in one["responses"] if int(status) >= 400]
        for name, one in told[0].items()
    }
    body = [400, 401, 403, 404, 408, 413, 415]
    assert refusals == {
        "make": [*body, 429, 499, 500, 503],
        "repeat": [*body, 422, 429, 499, 500],
        "look": [400, 403, 414, 500],
    }
    repeat = told[0]["repeat"]["responses"]
    assert "content" not in repeat["204"] and repeat["204"]["description"]
    for operation in told[0].values():
        for status, response in operation["responses"].items():
            assert response["headers"].keys() >= {"X-Request-Id", "X-Switchyard-Ignored"}
            if int(status) >= 400 and status != "414":
                assert response["content"] == {JSON: {"schema": ref("ErrorBody")}}


def test_the_document_asks_for_a_key_where_the_server_does(told):
    whole = told[1]
    assert whole["security"] == [{}, {"key": []}]
    scheme = {"key": {"type": "http", "scheme": "bearer"}}
    assert whole["components"]["securitySchemes"] == scheme
    assert whole["tags"] == [{"name": "own"}]
    assert list(whole["paths"]) == ["/again", "/things", "/things/{number}/{name}"]


def test_each_member_of_llamacpps_answers_is_described(make_client):
    body = {"prompt": "x\n", "n_probs": 1, "stop": ["7"], "n_predict": 9}
    client = make_client()
    whole = client.post("/completion", json=body)
    stream = client.post("/completion", json={**body, "stream": True, "return_progress": True})
    *chunks, last = [json.loads(line[6:]) for line in stream.text.splitlines() if line]
    assert set(whole.json) | set(last) <= set(LlamaCppBody.__annotations__)
    assert set.union(*map(set, chunks)) <= set(LlamaCppChunk.__annotations__)
