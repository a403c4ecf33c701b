"""The form of an output, by every name that clients have for it."""

import json

import pytest

from switchyard import engine
from tests.app.refused import error_of

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
    """Post a completion; the jobs that the backend got, or the error."""
    client = make_client()

    def post(path="/v1/completions", **body):
        prompt = {"prompt": "x"} if path == "/v1/completions" else {}
        # Not by the client's `json`, which sorts: the order of properties means something.
        data = json.dumps({**prompt, "max_tokens": 3, **body})
        response = client.post(path, data=data, content_type="application/json")
        if response.status_code == 200:
            return client.backend.enqueued
        assert not client.backend.enqueued
        return error_of(response)

    return post


def form(kind, **more):
    return {"response_format": {"type": kind, **more}}


def structured(**more):
    return {"structured_outputs": more}


@pytest.mark.parametrize(
    ("asked", "constraint"),
    [
        ({}, None),
        (form("text"), None),
        (form("json_object"), ANY_OBJECT),
        (form("json_object", schema=SCHEMA), BY_SCHEMA),
        (form("json_schema", schema=SCHEMA), BY_SCHEMA),
        (
            form(
                "json_schema",
                json_schema={
                    **{"name": "x", "description": None, "another": None, "strict": False},
                    "schema": SCHEMA,
                },
            ),
            BY_SCHEMA,
        ),
        (
            form("json_schema", json_schema={"name": "x", "schema": SCHEMA, "type": None}),
            BY_SCHEMA,
        ),
        (form("json_schema", schema={}), ANY_VALUE),
        ({"json_schema": SCHEMA}, BY_SCHEMA),
        ({"json_schema": SCHEMA, "guided_json": json.dumps(SCHEMA)}, BY_SCHEMA),
        ({"guided_json": SCHEMA}, BY_SCHEMA),
        ({"guided_json": json.dumps(SCHEMA)}, BY_SCHEMA),
        ({"guided_json": json.dumps(SCHEMA).ljust(128 * 1024)}, BY_SCHEMA),
        (structured(json=SCHEMA, regex=None), BY_SCHEMA),
        (structured(json_object=True), ANY_OBJECT),
        *(
            (asked, constraint)
            for name, value, constraint in (
                ("regex", "[a-z]+", BY_REGEX),
                ("choice", ["yes", "no"], BY_CHOICE),
                ("grammar", GBNF, BY_GRAMMAR),
            )
            for asked in (
                *({name: value}, {f"guided_{name}": value}),
                structured(**{name: value}),
            )
        ),
    ],
)
@pytest.mark.parameter("response_format", "structured_outputs", "json_schema", "regex", "choice")
@pytest.mark.parameter("grammar", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
def test_every_name_for_a_form_constrains_the_job(post, asked, constraint):
    [job] = post(**asked)
    assert job.constraint == constraint


def test_a_chat_is_constrained_as_well(post):
    asked = form("json_schema", json_schema={"name": "x", "schema": SCHEMA})
    messages = [{"role": "user", "content": "x"}]
    jobs = post("/v1/chat/completions", messages=messages, n=2, **asked)
    assert [job.constraint for job in jobs] == [BY_SCHEMA, BY_SCHEMA]


ITSELF = {"$ref": "#/$defs/a"}
INFINITE = {"type": "object", "properties": {"a": ITSELF}, "required": ["a"]}
# By the parameter: its values, and words of the messages about them.
WRONG = {
    "guided_json": [
        *(("{", "not JSON"), ("[]", "must be an object"), ("[" * 100_000, "")),
        (json.dumps(SCHEMA).ljust(128 * 1024 + 1), "131072"),
    ],
    "json_schema": [
        ({"nullable": True}, "nullable"),
        ({"x-guidance": {"lenient": True}}, "x-guidance"),
        ({"uniqueItems": True}, "uniqueItems"),
        ({"format": "colour"}, "colour"),
        ({"type": "strin"}, "strin"),
        ({"$ref": "http://example.com/x"}, "example.com"),
        ({"enum": []}, "unsatisfiable"),
        ({"minimum": 2**60}, "2**53"),
        ({"enum": [[-(2**64)]]}, "2**63"),
        ({"$ref": "#"}, "no finite value"),
        (
            {"type": "array", "minItems": 1, "items": ITSELF, "$defs": {"a": INFINITE}},
            "#/$defs/a",
        ),
        ({"minProperties": 2}, "minProperties"),
        (
            {"oneOf": [{"type": "string"}, {"minLength": 3}]},
            "two schemas of its oneOf may admit the same value",
        ),
    ],
    "regex": [
        *(("(", "unclosed"), (r"(?=a)b", "look-around"), (r"(a)\1", "backreference")),
        *(("a{1000}{1000}{1000}", ""), (r"[^\s\S]", "it allows no text")),
    ],
    "choice": [([], "at least 1")],
    "grammar": [
        ("root ::= nothing", "nothing"),
        ("start: <|im_end|>", "special"),
        ("start: <[4]>", "special"),
        ('start: %json {"not": {}}', "not"),
        ('start: %json {"nullable": true}', "nullable"),
        ("start: a\na[temperature=0.5]: /x/", "temperature"),
    ],
    "structured_outputs": [({}, "one"), ({"regex": r"[^\s\S]"}, "no text")],
    "response_format": [
        ({"type": "json_schema"}, "one schema"),
        (
            {"type": "json_schema", "schema": SCHEMA, "json_schema": {"schema": SCHEMA}},
            "one schema",
        ),
        ({"type": "json_object", "json_schema": {"name": "x"}}, "one schema"),
        ({"type": "text", "schema": SCHEMA}, "no schema"),
        ({"type": "text", "json_schema": {"name": "x"}}, "no schema"),
    ],
}


@pytest.mark.parametrize(
    ("asked", "param", "word"),
    [
        *(({name: value}, name, word) for name, rows in WRONG.items() for value, word in rows),
        ({"choice": [""]}, "choice.0", "at least 1"),
        ({"regex": "a", "choice": ["b"]}, "choice", "can't be combined"),
        ({"regex": "a", **form("json_object")}, "regex", "can't be combined"),
        (form("xml"), "response_format.type", "json_schema"),
        (structured(regex="a", json={}), "structured_outputs.regex", "can't be combined"),
        (structured(yaml=1), "structured_outputs.yaml", "unknown"),
        (structured(json_object=False), "structured_outputs.json_object", "True"),
        (structured(json="{"), "structured_outputs.json", "not JSON"),
        ({"regex": "a+", "ignore_eos": True}, "ignore_eos", "constraint"),
        ({"regex": "a+", "min_tokens": 2}, "min_tokens", "constraint"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_the_clients_name(post, asked, param, word):
    error = post(**asked)
    assert error["param"] == param and word in error["message"]


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ],
)
def test_ollamas_format_is_known_where_response_format_is(client, url, what):
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    for form in ("json", {"type": "json_object"}, schema, ""):
        assert client.post(url, json={**what, "format": form}).status_code == 200
    whole, same, own, none = (job.constraint for job in client.backend.enqueued)
    assert whole == same != own and None not in (whole, own) and none is None
    for more in ({"format": 5}, {"format": "json", "response_format": {"type": "text"}}):
        assert "format" in error_of(client.post(url, json={**what, **more}))["param"]
