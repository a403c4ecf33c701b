"""Thinking, effort and the form of an answer, as Anthropic's API asks for them."""

import pytest

from tests.app.anthropic.asked import HELLO, THINKS_AND_CALLS, URL, USER, error_of
from tests.app.conftest import prompt_of
from tests.scripted import ScriptedBackend, says

pytestmark = pytest.mark.both_ways
SWITCH = "{{ messages[0].content }} {{ enable_thinking }} {{ reasoning_effort }}"


@pytest.mark.parameter("thinking", "/v1/messages")
@pytest.mark.parameter("thinking.type", "/v1/messages")
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
def test_thinking_is_switched_on_and_off(
    make_client, with_template, thinking, switch, has_thoughts
):
    backend = ScriptedBackend(THINKS_AND_CALLS)
    client = make_client(backend, path=with_template(SWITCH))
    body = client.post(URL, json={**HELLO, "thinking": thinking}).json
    assert prompt_of(client, backend) == f"Hello {switch} "
    assert (body["content"][0]["type"] == "thinking") == has_thoughts


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
def test_thoughts_have_a_budget(make_client, with_template, thinking, template, budget):
    backend = ScriptedBackend()
    client = make_client(backend, path=with_template(template))
    assert client.post(URL, json={**HELLO, "thinking": thinking}).status_code == 200
    [job] = backend.enqueued
    assert (job.forced and job.forced.after_tokens) == budget
    count = client.post(f"{URL}/count_tokens", json={"messages": USER, "thinking": thinking})
    assert count.json == {"input_tokens": len(job.prompt)}


@pytest.mark.parameter("output_config")
@pytest.mark.parameter("output_config.effort")
@pytest.mark.parametrize(("effort", "told"), [("low", "low"), ("high", "high"), ("max", "xhigh")])
def test_the_effort_is_told_to_the_template(make_client, with_template, effort, told):
    backend = ScriptedBackend()
    client = make_client(backend, path=with_template(SWITCH))
    client.post(URL, json={**HELLO, "output_config": {"effort": effort}})
    assert prompt_of(client, backend) == f"Hello  {told}"


@pytest.mark.parameter("output_config.format")
def test_the_form_of_the_answer_constrains_the_job(make_client):
    backend = ScriptedBackend()
    form = {"type": "json_schema", "schema": {"type": "object"}}
    client = make_client(backend)
    asked = {"format": {**form, "x": None}, "x": None}
    response = client.post(URL, json={**HELLO, "output_config": asked})
    assert response.status_code == 200 and backend.enqueued[0].constraint is not None
    form["schema"] = {"type": "nothing"}
    response = client.post(URL, json={**HELLO, "output_config": {"format": form}})
    assert error_of(response)["message"].startswith("output_config.format: ")
    response = client.post(URL, json={**HELLO, "regex": r"[^\s\S]"})
    assert error_of(response)["message"].startswith("regex: ")


def test_an_effort_of_one_turn_is_taken_and_told(make_client):
    client = make_client(ScriptedBackend(says("Hi")))
    system = {"role": "system", "content": "Be brief.", "output_config": {"effort": "medium"}}
    body = {**HELLO, "messages": [*HELLO["messages"], system]}
    response = client.post(URL, json=body)
    assert response.status_code == 200, response.text
    assert response.headers["X-Switchyard-Ignored"] == "messages.output_config"
    system["output_config"] = {"format": {"type": "json_schema", "schema": {}}}
    assert client.post(URL, json=body).status_code == 400
