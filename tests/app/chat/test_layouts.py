"""Tags that are plain text, special tokens, or added tokens that aren't special: all work alike."""

import pytest
from tokenizers import Tokenizer as Library

from switchyard import engine
from tests.app.chat.test_enforced import CALL, REQUEST, STRICT, WEATHER, named
from tests.conftest import DEMO
from tests.layouts import LAYOUTS, TAGS, lay_out
from tests.scripted import ScriptedBackend

BAD = CALL.replace("Rome", "Roma")
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": {"a": 1}}}}


@pytest.fixture(params=[(layout, spells) for layout in LAYOUTS for spells in (True, False)])
def path(request, tmp_path):
    """The path of a model for each layout, with a chat template that spells the tags or doesn't."""
    layout, spells = request.param
    return lay_out(layout, DEMO, tmp_path / "model", spelled=TAGS if spells else ())


def is_taken(client, path, constraint, text):
    """Whether the model may write `text` by its own tokens, and end there."""
    library = Library.from_file(f"{path}/tokenizer.json")
    matcher = client.models.get().grammars.matcher(constraint.grammar)
    return all(
        map(matcher.consume_token, library.encode(text, add_special_tokens=False).ids)
    ) and bool(matcher.is_accepting())


@pytest.mark.parametrize(
    ("more", "taken", "refused"),
    [
        ({"tool_choice": "required"}, [CALL, f"{CALL}\n{CALL}"], [BAD, "No.", f"No. {CALL}"]),
        ({"tool_choice": named("get_weather")}, [CALL], [BAD, "No."]),
        ({"tools": [STRICT]}, [CALL, f"Well. {CALL}\nSo.", "No."], [BAD, f"Well. {BAD}"]),
        ({"response_format": FORM}, [CALL, '{"a": 1}'], ["No.", '{"a": 2}']),
    ],
    ids=["required", "named", "strict", "with a form"],
)
def test_the_models_own_call_is_taken(chat, path, more, taken, refused):
    asked = chat({**REQUEST, "tools": [WEATHER], **more}, path=path, tool_format="hermes")
    constraint = asked.job.constraint
    assert all(is_taken(asked.client, path, constraint, text) for text in taken)
    assert not any(is_taken(asked.client, path, constraint, text) for text in refused)


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_in_a_constraint_is_text(make_client, path, tag):
    client = make_client(ScriptedBackend(), path=path)
    model, constraints = client.models.get(), engine.constraints
    for constraint, text in [
        (constraints.choice([tag, "other"]), tag),
        (constraints.json_schema({"const": f"a {tag} b"}), f'"a {tag} b"'),
        (constraints.regex(f"{tag}a+"), f"{tag}aa"),
        (constraints.grammar(f'root ::= "{tag}" [a-z]'), f"{tag}z"),
    ]:
        matcher = model.grammars.matcher(constraint.grammar)
        for character in text:  # which are tokens each
            assert matcher.consume_token(model.tokenizer.token_id(character.replace(" ", "Ġ")))
        assert matcher.is_accepting()
