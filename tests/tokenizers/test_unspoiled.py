"""What a schema or a tool admits is taken in the tokens of each family."""

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
    body = {"messages": HI, **more}
    response = asked._send("/v1/chat/completions", body)
    hypothesis.assume(response.status_code == 200)
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
