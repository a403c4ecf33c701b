"""What a JSON schema may say: by each keyword and each place, before anything is compiled."""

import pytest

from switchyard import engine
from switchyard.engine.grammar import constraints
from switchyard.engine.grammar.limits import MAX_SECONDS, Estimate
from switchyard.engine.grammar.schema.checks import checked

ANNOTATIONS = (
    *("title", "description", "default", "example", "examples", "deprecated", "readOnly"),
    *("writeOnly", "contentEncoding", "contentMediaType", "discriminator", "markdownDescription"),
    *("$schema", "$id", "id", "$anchor", "$comment", "x-order"),
)
BAD = {"nullable": True}
PLACES = {
    "#/items": {"items": BAD},
    "#/items/1": {"items": [{}, BAD]},
    "#/additionalItems": {"additionalItems": BAD},
    "#/additionalProperties": {"additionalProperties": BAD},
    "#/anyOf/0": {"anyOf": [BAD]},
    "#/oneOf/0": {"oneOf": [BAD]},
    "#/allOf/0": {"allOf": [BAD]},
    "#/prefixItems/0": {"prefixItems": [BAD]},
    "#/properties/a": {"properties": {"a": BAD}},
    "#/patternProperties/a": {"patternProperties": {"a": BAD}},
    "#/$defs/a": {"$defs": {"a": BAD}},
    "#/definitions/a": {"definitions": {"a": BAD}},
    "#/items/properties/a": {"items": {"properties": {"a": BAD}}},
}
SELF, END = {"$ref": "#"}, {"type": "null"}
OPTIONAL = "a?" * 890  # more than half of the time that a schema may take


def refusal(schema):
    with pytest.raises(engine.InvalidJob) as caught:
        constraints.json_schema(schema)
    assert caught.value.param == "constraint"
    return str(caught.value)


@pytest.mark.parametrize("keyword", ANNOTATIONS)
def test_a_note_of_the_schemas_author_is_taken(keyword):
    assert constraints.json_schema({"properties": {"a": {"type": "string", keyword: "x"}}})


@pytest.mark.parametrize("place", PLACES)
def test_a_keyword_that_is_not_known_is_refused_wherever_it_stands(place):
    said = refusal(PLACES[place])
    assert f"the schema at {place} is not supported" in said and "'nullable'" in said


@pytest.mark.parametrize(
    "place", ["const", "enum", "default", "examples", "properties", "patternProperties"]
)
def test_what_is_no_keyword_may_have_any_name(place):
    assert constraints.json_schema({place: [BAD] if place == "enum" else {"nullable": {}}})


@pytest.mark.parametrize(
    "keyword", ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]
)
def test_a_bound_is_within_what_the_compiler_does_not_round(keyword):
    if keyword != "multipleOf":
        for number in (2**53, -(2**53)):
            assert constraints.json_schema({keyword: number})
    for number in (2**53 + 1, -(2**53) - 1, 1e300):
        assert f"{keyword} is beyond 2**53" in refusal({keyword: number})


@pytest.mark.parametrize("value", [2**63, -(2**63), [[2**63]], {"a": {"b": -(2**64)}}])
def test_a_value_is_within_what_the_compiler_does_not_round(value):
    for schema in ({"const": value}, {"enum": [0, value]}):
        assert "has a whole number beyond 2**63" in refusal(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [SELF]},
        {"oneOf": [SELF, SELF]},
        {"allOf": [END, SELF]},
        {"type": "object", "properties": {"a": SELF}, "required": ["a"]},
        {"type": ["object"], "properties": {"a": SELF}, "required": ["a"]},
        {"type": "object", "additionalProperties": SELF, "required": ["a"]},
        {"type": ["array"], "items": SELF, "minItems": 1},
        {"type": "array", "prefixItems": [END, SELF], "minItems": 2},
        {"type": "array", "prefixItems": [END], "items": SELF, "minItems": 2},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"$ref": "#/$defs/a~1b"}}},
        {"$ref": "#/$defs/~01", "$defs": {"~1": {"$ref": "#/$defs/~01"}}},
    ],
    ids=str,
)
def test_a_schema_whose_values_never_end_is_refused(schema):
    assert "no finite value can match it" in refusal(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [SELF, END]},
        {"type": "object", "properties": {"a": SELF}},
        {
            "properties": {"a": END},
            "required": ["a"],
            "additionalProperties": SELF,
            "type": "object",
        },
        {"type": ["object", "null"], "properties": {"a": SELF}, "required": ["a"]},
        {"type": ["array", "null"], "items": SELF, "minItems": 1},
        {"type": "array", "items": SELF},
        {"type": "array", "prefixItems": [END, SELF], "minItems": 1},
        {"type": "array", "prefixItems": [END], "items": SELF, "minItems": 1},
    ],
    ids=str,
)
def test_a_schema_that_holds_itself_is_taken_where_a_value_can_end(schema):
    assert constraints.json_schema(schema)


def test_names_outside_the_required_ones_are_counted_up_to_one():
    for required in ([], ["a"], ["a", "b"]):
        schema = {"required": required, "minProperties": len(required) + 1}
        assert constraints.json_schema(schema)
        assert "minProperties may exceed" in refusal(schema | {"minProperties": len(required) + 2})


def test_a_long_name_that_a_pattern_matches_is_refused():
    schema = {"type": "object", "patternProperties": {"^x": {}}}
    assert constraints.json_schema({**schema, "properties": {"x" * 80: {}, "y" * 500: {}}})
    said = refusal({"items": {**schema, "properties": {"x" * 81: {}}}})
    assert "at #/items is not supported: patternProperties match a named property" in said


def test_so_many_properties_and_no_more():
    names = [f"p{i}" for i in range(2000)]
    assert constraints.json_schema({"required": names})
    assert "more than 2000 properties" in refusal({"required": names, "properties": {"a": {}}})


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"pattern": OPTIONAL}, {"items": {"pattern": f"{OPTIONAL}b"}}),
        (
            {"patternProperties": {f"^x{i}y": {} for i in range(75)}},
            {"items": {"pattern": OPTIONAL}},
        ),
        ({"const": [*range(2000)]}, {"items": {"pattern": OPTIONAL}}),
        ({"enum": [[[i] for i in range(900)]]}, {"items": {"pattern": OPTIONAL}}),
        ({"properties": {f"p{i}": {"items": {}} for i in range(1400)}}, {"pattern": OPTIONAL}),
    ],
    ids=["pattern", "patternProperties", "const", "enum", "properties"],
)
def test_the_parts_of_a_schema_take_their_time_together(one, two):
    for schema in (one, two):
        assert MAX_SECONDS / 2 < constraints.seconds_to_compile(schema) < MAX_SECONDS
    assert "too long to compile" in refusal({"anyOf": [one, two]})


@pytest.mark.parametrize("form", ["pattern", "format"])
def test_so_many_forms_of_one_text_and_no_more(form):
    parts = [{form: f"x{i}"} for i in range(10)]
    assert checked({"allOf": parts[:9]}, Estimate())
    assert "more than 8 patterns and formats" in refusal({"allOf": parts})
    assert checked({"allOf": [{form: "x"}] * 10}, Estimate())  # one form


@pytest.mark.parametrize("multiple", [10_000_000, 0.0001, 12.5])
def test_a_multiple_counts_without_the_zeros_at_its_end(multiple):
    assert constraints.json_schema({"multipleOf": multiple})
