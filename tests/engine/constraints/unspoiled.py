"""Random schemas and texts that they admit, for hypothesis; what a constraint makes of them."""

import json

import hypothesis
import jsonschema
from hypothesis import strategies as st

from tests.engine.constraints.instances import CHECKER, instance
from tests.engine.constraints.spelled import spelled
from tests.engine.random_forms import schemas

PLAIN = ("pattern", "format", "patternProperties")  # what they say of is spelled plainly


@st.composite
def schemas_and_texts(draw):
    schema = draw(schemas())
    return schema, draw(texts(schema))


@st.composite
def arguments_and_texts(draw):
    """Schemas of a tool's arguments, with texts of these."""
    value = draw(schemas())
    schema = {
        "type": "object",
        "properties": {"value": value, "number": {"type": "integer"}, "city": {"type": "string"}},
        "required": ["value"],
        "$defs": value.pop("$defs"),
    }
    return schema, draw(texts(schema))


@st.composite
def texts(draw, schema):
    value = instance(draw, schema, schema)
    validator = jsonschema.Draft202012Validator(schema, format_checker=CHECKER)
    hypothesis.assume(validator.is_valid(value))
    is_free = not any(f'"{word}"' in json.dumps(schema) for word in PLAIN)
    return draw(spelled(value, is_free))


def left_at(grammars, constraint, token_ids):
    """Where the tokens leave what a constraint admits; None if they don't and may end there."""
    matcher = grammars.matcher(constraint.grammar)
    done = matcher.try_consume_tokens(token_ids := [*token_ids])
    text = b"".join(map(grammars.pieces.__getitem__, token_ids[:done])).decode(errors="replace")
    if done < len(token_ids):
        return text
    return None if matcher.is_accepting() else f"{text} …"
