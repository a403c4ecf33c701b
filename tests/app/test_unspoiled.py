"""A right answer comes out of a constraint unchanged, on each route, streamed and whole."""

import json
import random

import pytest

from tests.app.taught import CHATS, Teacher, form_of, tools_of

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "age": {"type": "integer"}}}
SCORE = {
    "type": "object",
    "properties": {"score": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 20}},
    "patternProperties": {"^score$": {"type": "integer"}},
    "required": ["score"],
    "additionalProperties": False,
}
NODE = {
    "$defs": {"node": {"type": "object", "properties": {"v": {}, "n": {"$ref": "#/$defs/node"}}}},
    "$ref": "#/$defs/node",
}
SCHEMAS = [
    (CITY, '{"age": 30, "city": "Rome"}'),
    (CITY, "{}"),
    (CITY, '{"more": [1], "c\\u0069ty": "\\u0052ome"}'),
    (NODE, '{"n": {"n": {}, "v": 1}}'),
    ({"type": "array", "items": CITY}, '[{"age": 1, "city": ""}]'),
    (SCORE, '{"score": 15}'),
]
GRAMMARS = [
    ('root ::= "\\u00e9ab"', "éab"),
    ("root ::= [\\u0430-\\u044f]+", "привет"),
    ('root ::= "\\u0041b" "\\U0001F600"', "Ab😀"),
    ('start ::= "a"\nroot ::= start', "a"),
    ('root ::= "x" "a"{0} "b"{0,0} "y"', "xy"),
    ('?start: "a" | "b"', "b"),
    ('!start: "a"', "a"),
    ("start[lazy]: /ab/", "ab"),
]
REFUSED = [
    ('start.2: "a"', "at 1(10): priority not supported"),
    ('root ::= "a"\nb ::= "\\-"', "line 2, column 8"),
    ('| root ::= "a"', "line 1, column 1"),
    ('root ::= "a"{,3}', "line 1, column 13"),
]
NAMES = ["black", "blue", "gold", "green", "red", "white"]
SIX = {"type": "object", "properties": {n: {"type": "integer"} for n in NAMES}, "required": NAMES}

each_route = pytest.mark.parametrize(
    ("route", "streams"), [(route, streams) for route in CHATS for streams in (False, True)]
)


@pytest.fixture
def teacher(make_client):
    return Teacher(make_client, tool_format="hermes")


def of_six(seed):
    names = random.Random(seed).sample(NAMES, len(NAMES))
    return json.dumps({name: i for i, name in enumerate(names)})


@each_route
def test_a_schemas_text_comes_out_unchanged(teacher, route, streams):
    for schema, text in [*SCHEMAS, *((SIX, of_six(seed)) for seed in range(20))]:
        assert teacher.ask(route, streams, text, **form_of(route, schema)) == (text, [])


@each_route
def test_a_tools_arguments_come_out_unchanged(teacher, route, streams):
    for schema, text in [(CITY, SCHEMAS[0][1]), (SCORE, '{"score": 15}'), (SIX, of_six(1))]:
        call = f'<tool_call>\n{{"name": "get_weather", "arguments": {text}}}\n</tool_call>'
        more = tools_of(route, schema)
        assert teacher.ask(route, streams, call, **more) == ("", [("get_weather", text)])


@each_route
def test_a_grammars_text_comes_out_unchanged(teacher, route, streams):
    for grammar, text in GRAMMARS:
        assert teacher.ask(route, streams, text, grammar=grammar) == (text, [])
    for grammar, place in REFUSED:
        response = teacher.post(route, streams, "a", grammar=grammar)
        assert response.status_code == 400 and place in response.json["error"]["message"]
