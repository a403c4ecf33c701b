"""What a schema or a tool admits is taken in the tokens of each family, and no control token is."""

import itertools
import json
import random

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.engine.constraints.random_gbnf import NODES, grammar_of, sample
from tests.engine.constraints.unspoiled import arguments_and_texts, left_at, schemas_and_texts
from tests.tokenizers.calls import text_of

SETTINGS = hypothesis.settings(
    max_examples=10,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
    derandomize=True,
    deadline=None,
)
HI = [{"role": "user", "content": "Hi"}]


def left(asked, text, **more):
    """Where the text of a chat leaves its constraint."""
    status, _ = asked.send("/v1/chat/completions", {"messages": HI, **more})
    hypothesis.assume(status == 200)
    constraint = asked.jobs[-1].constraint
    asked.jobs.clear()
    return left_at(asked.engine.grammars, constraint, asked.ids(text))


@SETTINGS
@hypothesis.given(schemas_and_texts())
def test_what_a_schema_admits_is_never_spoiled(asked, pair):
    schema, text = pair
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert left(asked, text, response_format=form) is None


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_what_a_tool_admits_is_never_spoiled(asked, choice):
    @SETTINGS
    @hypothesis.given(arguments_and_texts())
    def check(pair):
        schema, text = pair
        function = {"name": "weather", "parameters": schema, "strict": choice == "auto"}
        call = text_of(asked.family, [("weather", {})]).replace("{}", text)
        tools = [{"type": "function", "function": function}]
        assert left(asked, call, tools=tools, tool_choice=choice) is None

    check()


@SETTINGS
@hypothesis.given(NODES, st.data())
def test_what_a_grammar_admits_is_never_spoiled(asked, node, data):
    text = sample(node, data.draw)
    hypothesis.assume(text)
    assert left(asked, text, grammar=grammar_of(node, data.draw)) is None


def forms_of(text):
    """Constraints that admit a text alone, and how it is written."""
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": text}}}
    pattern = "".join(rf"\x{{{ord(character):x}}}" for character in text)
    return [
        ({"choice": ["other", text]}, text),
        ({"regex": f"a{pattern}"}, f"a{text}"),
        ({"response_format": schema}, json.dumps(text, ensure_ascii=False)),
        ({"grammar": f"root ::= {json.dumps(text)}"}, text),
        ({"grammar": f"start: {json.dumps(text, ensure_ascii=False)}"}, text),
    ]


def test_a_constraint_that_spells_a_control_token_never_admits_it(asked):
    tokenizer, grammars = asked.engine.tokenizer, asked.engine.grammars
    control = tokenizer.control_ids - {*tokenizer.eos_token_ids}
    contents = sorted(tokenizer.contents[i].decode() for i in tokenizer.control_ids)
    random.Random(0).shuffle(contents)
    for i, content in zip(range(20), itertools.cycle(contents), strict=False):
        forms = forms_of(content)
        form, text = forms[i % len(forms)]
        asked.post("/v1/completions", {"prompt": "Hi", **form})  # a chat may have thoughts first
        matcher = grammars.matcher(asked.jobs[-1].constraint.grammar)
        for token_id in tokenizer.encode_within(text):
            mask = matcher.compute_logit_bias()
            assert not any(mask[i] for i in tokenizer.control_ids), (form, token_id)
            assert matcher.consume_token(token_id), (form, token_id)
        mask = matcher.compute_logit_bias()
        assert matcher.is_accepting() and not any(mask[i] for i in control), form
