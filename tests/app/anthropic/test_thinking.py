"""Thinking, effort and the form of an answer, as Anthropic's API asks for them."""

import pytest

from tests.app.anthropic.asked import HELLO, THINKS_AND_CALLS, URL, USER, error_of

pytestmark = pytest.mark.both_ways
SWITCH = "{{ messages[0].content }} {{ enable_thinking }} {{ reasoning_effort }}"


@pytest.mark.parameter("thinking thinking.type", "/v1/messages")
@pytest.mark.parameter("thinking.display")
@pytest.mark.parametrize(
    ("thinking", "switch", "has_thoughts"),
    [
        (None, "", True),
        ({"type": "adaptive"}, "True", True),
        ({"type": "adaptive", "display": "omitted"}, "True", False),
        ({"type": "adaptive", "display": "updates"}, "True", True),  # Claude Code 2.1.330
        ({"type": "disabled"}, "False", False),
    ],
)
def test_thinking_is_switched_on_and_off(message, thinking, switch, has_thoughts):
    asked = message({**HELLO, "thinking": thinking}, *THINKS_AND_CALLS, template=SWITCH)
    assert asked.prompt == f"Hello {switch} "
    assert (asked.response.json["content"][0]["type"] == "thinking") == has_thoughts


@pytest.mark.parameter("thinking.budget_tokens")
@pytest.mark.parametrize(
    ("thinking", "template", "budget"),
    [
        ({"type": "enabled", "budget_tokens": 7}, "{% if false %}<think>{% endif %}", 7),
        ({"type": "enabled", "budget_tokens": 7}, "no thoughts", None),
        ({"type": "disabled"}, "{% if false %}<think>{% endif %}", 0),
        ({"type": "disabled"}, "x{% if enable_thinking %}<think>{% endif %}", None),
        ({"type": "disabled"}, "no thoughts", None),
    ],
)
def test_thoughts_have_a_budget(message, thinking, template, budget):
    asked = message({**HELLO, "thinking": thinking}, template=template)
    forced = asked.job.forced
    assert (forced and forced.after_tokens) == budget
    counted = asked.again({"messages": USER, "thinking": thinking}, f"{URL}/count_tokens")
    assert counted.response.json == {"input_tokens": len(asked.job.prompt)}


@pytest.mark.parameter("output_config output_config.effort")
@pytest.mark.parametrize(("effort", "told"), [("low", "low"), ("high", "high"), ("max", "xhigh")])
def test_the_effort_is_told_to_the_template(message, effort, told):
    asked = message({**HELLO, "output_config": {"effort": effort}}, template=SWITCH)
    assert asked.prompt == f"Hello  {told}"


@pytest.mark.parameter("output_config.format")
def test_the_form_of_the_answer_constrains_the_job(message):
    form = {"type": "json_schema", "schema": {"type": "object"}}
    output_config = {"format": {**form, "x": None}, "x": None}
    asked = message({**HELLO, "output_config": output_config})
    assert asked.job.constraint is not None
    form["schema"] = {"type": "nothing"}
    error = error_of(asked.again({**HELLO, "output_config": {"format": form}}).response)
    assert error["message"].startswith("output_config.format: ")
    error = error_of(asked.again({**HELLO, "regex": r"[^\s\S]"}).response)
    assert error["message"].startswith("regex: ")


def test_an_effort_of_one_turn_is_taken_and_told(message):
    system = {"role": "system", "content": "Be brief.", "output_config": {"effort": "medium"}}
    body = {**HELLO, "messages": [*HELLO["messages"], system]}
    asked = message(body)
    assert (asked.response.status_code, asked.ignored) == (200, "messages.output_config")
    system["output_config"] = {"format": {"type": "json_schema", "schema": {}}}
    assert asked.again(body).response.status_code == 400
