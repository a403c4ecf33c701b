"""The types in schemas of tools, on each route that takes tools."""

import pytest

from tests.app.chat.conftest import URL
from tests.app.chat.test_tools import HELLO

WRONG = {"type": "invalid"}
STRINGS = {"type": ["string", "null"], "enum": ["invalid"], "default": {"type": "invalid"}}


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        (WRONG, "type"),
        ({"type": ["string", "str"]}, "type"),
        ({"type": {"a": 1}}, "type"),
        ({"properties": {"type": WRONG}}, "properties.type.type"),
        ({"items": {"anyOf": [STRINGS, WRONG]}}, "items.anyOf.1.type"),
        ({"items": [WRONG]}, "items.0.type"),
        ({"$defs": {"a": {"additionalProperties": WRONG}}}, "$defs.a.additionalProperties.type"),
        ({"properties": 5}, "properties"),
        ({"items": {"$defs": []}}, "items.$defs"),
        ({"properties": {"type": STRINGS, "x": {"type": None}}, "items": True}, None),
        ({"properties": None}, None),
    ],
    ids=str,
)
@pytest.mark.parametrize("url", [URL, "/v1/messages", "/v1/responses"])
def test_what_json_schema_lacks_is_refused_with_its_path(chat, url, schema, path):
    """Without `strict` too, though the schema is then for the model alone."""
    function = {"name": "f", "parameters": schema}
    body, place = {**HELLO, "tools": [{"type": "function", "function": function}]}, "function."
    if url == "/v1/messages":
        body = {**HELLO, "max_tokens": 9, "tools": [{"name": "f", "input_schema": schema}]}
        place = ""
    elif url == "/v1/responses":
        body, place = {"input": "x", "tools": [{"type": "function", **function}]}, ""
    response = chat(body, url=url).response
    if path is None:
        assert response.status_code == 200, response.text
        return
    field = "input_schema" if "messages" in url else "parameters"
    assert response.status_code == 400
    assert f"tools.0.{place}{field}: {path} must be" in response.json["error"]["message"]
