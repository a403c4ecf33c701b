"""The form of an output, by every name that clients have for it."""

import json

import pytest

from switchyard import engine

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
BY_SCHEMA = engine.constraints.json_schema(SCHEMA)
BY_REGEX = engine.constraints.regex("[a-z]+")
BY_CHOICE = engine.constraints.choice(["yes", "no"])
GBNF = 'root ::= "a" | "b"'
BY_GRAMMAR = engine.constraints.grammar(GBNF)
ANY_OBJECT = engine.constraints.json_object()
ANY_VALUE = engine.constraints.json_schema({})


@pytest.fixture
def post(make_client):
    """Post a completion; the jobs that the client.backend got, or the error."""
    client = make_client()

    def post(path="/v1/completions", **body):
        prompt = {"prompt": "x"} if path == "/v1/completions" else {}
        # Not by the client's `json`, which sorts: the order of properties means something.
        data = json.dumps({**prompt, "max_tokens": 3, **body})
        response = client.post(path, data=data, content_type="application/json")
        if response.status_code != 200:
            assert not client.backend.enqueued
            return response.status_code, response.get_json()["error"]
        return client.backend.enqueued

    return post


@pytest.mark.parametrize(
    ("form", "constraint"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, ANY_OBJECT),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, BY_SCHEMA),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, BY_SCHEMA),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "name": "x",
                        "description": None,
                        "another": None,
                        "strict": False,
                        "schema": SCHEMA,
                    },
                }
            },
            BY_SCHEMA,
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SCHEMA, "type": None},
                }
            },
            BY_SCHEMA,
        ),
        ({"response_format": {"type": "json_schema", "schema": {}}}, ANY_VALUE),
        ({"json_schema": SCHEMA}, BY_SCHEMA),
        ({"json_schema": SCHEMA, "guided_json": json.dumps(SCHEMA)}, BY_SCHEMA),
        ({"guided_json": SCHEMA}, BY_SCHEMA),
        ({"guided_json": json.dumps(SCHEMA)}, BY_SCHEMA),
        ({"guided_json": json.dumps(SCHEMA).ljust(128 * 1024)}, BY_SCHEMA),
        ({"structured_outputs": {"json": SCHEMA, "regex": None}}, BY_SCHEMA),
        ({"structured_outputs": {"json_object": True}}, ANY_OBJECT),
        ({"regex": "[a-z]+"}, BY_REGEX),
        ({"guided_regex": "[a-z]+"}, BY_REGEX),
        ({"structured_outputs": {"regex": "[a-z]+"}}, BY_REGEX),
        ({"choice": ["yes", "no"]}, BY_CHOICE),
        ({"guided_choice": ["yes", "no"]}, BY_CHOICE),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, BY_CHOICE),
        ({"grammar": GBNF}, BY_GRAMMAR),
        ({"guided_grammar": GBNF}, BY_GRAMMAR),
        ({"structured_outputs": {"grammar": GBNF}}, BY_GRAMMAR),
    ],
)
@pytest.mark.parameter("response_format")
@pytest.mark.parameter("structured_outputs")
@pytest.mark.parameter("json_schema")
@pytest.mark.parameter("regex")
@pytest.mark.parameter("choice")
@pytest.mark.parameter("grammar")
@pytest.mark.parameter("guided_json")
@pytest.mark.parameter("guided_regex")
@pytest.mark.parameter("guided_choice")
@pytest.mark.parameter("guided_grammar")
def test_every_name_for_a_form_constrains_the_job(post, form, constraint):
    [job] = post(**form)
    assert job.constraint == constraint


def test_a_chat_is_constrained_as_well(post):
    messages = [{"role": "user", "content": "x"}]
    response_format = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    jobs = post("/v1/chat/completions", messages=messages, response_format=response_format, n=2)
    assert [job.constraint for job in jobs] == [BY_SCHEMA, BY_SCHEMA]


@pytest.mark.parametrize(
    ("form", "param", "word"),
    [
        ({"regex": "a", "choice": ["b"]}, "choice", "both"),
        ({"regex": "a", "response_format": {"type": "json_object"}}, "regex", "both"),
        (
            {"structured_outputs": {"regex": "a", "json": {}}},
            "structured_outputs.regex",
            "both",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "one"),
        ({"structured_outputs": {"yaml": 1}}, "structured_outputs.yaml", "unknown"),
        (
            {"structured_outputs": {"json_object": False}},
            "structured_outputs.json_object",
            "True",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format", "one schema"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "schema": SCHEMA,
                    "json_schema": {"schema": SCHEMA},
                }
            },
            "response_format",
            "one schema",
        ),
        (
            {"response_format": {"type": "json_object", "json_schema": {"name": "x"}}},
            "response_format",
            "one schema",
        ),
        ({"response_format": {"type": "text", "schema": SCHEMA}}, "response_format", "no schema"),
        (
            {"response_format": {"type": "text", "json_schema": {"name": "x"}}},
            "response_format",
            "no schema",
        ),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "not JSON"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
        ({"guided_json": "{"}, "guided_json", "not JSON"),
        ({"guided_json": "[]"}, "guided_json", "must be an object"),
        ({"guided_json": "[" * 100_000}, "guided_json", ""),
        ({"guided_json": json.dumps(SCHEMA).ljust(128 * 1024 + 1)}, "guided_json", "131072"),
        ({"json_schema": {"nullable": True}}, "json_schema", "nullable"),
        ({"json_schema": {"x-guidance": {"lenient": True}}}, "json_schema", "x-guidance"),
        ({"json_schema": {"uniqueItems": True}}, "json_schema", "uniqueItems"),
        ({"json_schema": {"format": "colour"}}, "json_schema", "colour"),
        ({"json_schema": {"type": "strin"}}, "json_schema", "strin"),
        ({"json_schema": {"$ref": "http://example.com/x"}}, "json_schema", "example.com"),
        ({"json_schema": {"enum": []}}, "json_schema", "unsatisfiable"),
        ({"json_schema": {"minimum": 2**60}}, "json_schema", "2**53"),
        ({"json_schema": {"enum": [[-(2**64)]]}}, "json_schema", "2**63"),
        ({"json_schema": {"$ref": "#"}}, "json_schema", "no finite value"),
        (
            {
                "json_schema": {
                    **{"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/a"}},
                    "$defs": {
                        "a": {
                            "type": "object",
                            "properties": {"a": {"$ref": "#/$defs/a"}},
                            "required": ["a"],
                        }
                    },
                }
            },
            "json_schema",
            "#/$defs/a",
        ),
        ({"json_schema": {"minProperties": 2}}, "json_schema", "minProperties"),
        (
            {"json_schema": {"oneOf": [{"type": "string"}, {"minLength": 3}]}},
            "json_schema",
            "two schemas of its oneOf may admit the same value",
        ),
        ({"regex": "("}, "regex", "unclosed"),
        ({"regex": r"(?=a)b"}, "regex", "look-around"),
        ({"regex": r"(a)\1"}, "regex", "backreference"),
        ({"regex": "a{1000}{1000}{1000}"}, "regex", ""),
        ({"regex": r"[^\s\S]"}, "regex", "it allows no text"),
        ({"structured_outputs": {"regex": r"[^\s\S]"}}, "structured_outputs", "no text"),
        ({"choice": []}, "choice", "at least 1"),
        ({"choice": [""]}, "choice.0", "at least 1"),
        ({"grammar": "root ::= nothing"}, "grammar", "nothing"),
        ({"grammar": "start: <|im_end|>"}, "grammar", "special"),
        ({"grammar": "start: <[4]>"}, "grammar", "special"),
        ({"grammar": 'start: %json {"not": {}}'}, "grammar", "not"),
        ({"grammar": 'start: %json {"nullable": true}'}, "grammar", "nullable"),
        ({"grammar": "start: a\na[temperature=0.5]: /x/"}, "grammar", "temperature"),
        ({"regex": "a+", "ignore_eos": True}, "ignore_eos", "constraint"),
        ({"regex": "a+", "min_tokens": 2}, "min_tokens", "constraint"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_the_clients_name(post, form, param, word):
    status, error = post(**form)
    assert (status, error["param"]) == (400, param)
    assert word in error["message"]


@pytest.mark.parametrize("url", ["/v1/completions", "/v1/chat/completions"])
def test_ollamas_format_is_known_where_response_format_is(make_client, url):
    client = make_client()
    chat = {"messages": [{"role": "user", "content": "x"}]}
    what = chat if "chat" in url else {"prompt": "x"}
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    for form in ("json", {"type": "json_object"}, schema, ""):
        assert client.post(url, json={**what, "format": form}).status_code == 200
    whole, same, own, none = (job.constraint for job in client.backend.enqueued)
    assert whole == same != own and None not in (whole, own) and none is None
    for more in ({"format": 5}, {"format": "json", "response_format": {"type": "text"}}):
        refused = client.post(url, json={**what, **more})
        assert refused.status_code == 400 and "format" in refused.json["error"]["param"]
