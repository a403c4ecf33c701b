"""Models with several chat templates, and with one that can render nothing."""

import logging

from tests.app.chat.test_tools import QUESTION
from tests.scripted import ScriptedBackend

NAMED = [
    {"name": "default", "template": "default{{ mood }}"},
    {"name": "tool_use", "template": "{{ tools[0].function.name }}<tool_call>"},
    {"name": "rag", "template": "rag"},
]


def test_a_request_with_tools_gets_the_template_for_tools_and_its_variables(chat):
    without = {"messages": QUESTION["messages"]}
    asked = chat(without, template=NAMED)
    assert asked.prompt == "default"
    assert asked.again(QUESTION).prompt == "get_weather<tool_call>"
    assert asked.again({**QUESTION, "tool_choice": "none"}).prompt == "default"
    mood = {"chat_template_kwargs": {"mood": " fair"}}
    assert asked.again(without | mood).prompt == "default fair"
    assert asked.again(QUESTION | mood).refusal == "chat_template_kwargs"


def test_the_start_names_the_template_that_can_render_nothing(make_client, with_template, caplog):
    with caplog.at_level(logging.WARNING, "switchyard.app.services"):
        make_client(ScriptedBackend(), path=with_template("{{ raise_exception('not me') }}"))
        broken = [NAMED[0], {"name": "tool_use", "template": "{% if %}"}]
        make_client(ScriptedBackend(), path=with_template(broken))
    raising, unread = [record.getMessage() for record in caplog.records]
    place = "model scripted: the model's chat template, tokenizer_config.json"
    assert raising == f"{place}, fails on every conversation: not me"
    assert unread.startswith(f"{place}, is broken: ")
