"""The table of formats of calls."""

import pytest

from switchyard.app.parts.call_formats import FORMATS, recognise
from tests.app.chat.test_parser import parse


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_grammar_writes_is_what_the_parser_reads(name):
    format = FORMATS[name]
    names, arguments = ["f", "get_weather"], '{"a": "}"}'
    calls = [format.before.replace("NAME", name) + arguments + format.behind for name in names]
    text = format.opening + format.separator.join(calls) + format.closing
    assert parse(text, name) == ("", "", [(name, arguments) for name in names])


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("… within <tool_call></tool_call> XML tags", "hermes"),
        ('Respond in the format {"name": function name, "parameters": dictionary}', "llama3"),
        ("{{ '[TOOL_CALLS]' + tool_calls }}", "mistral"),
        ("{{ ' to=functions.' + name + '<|channel|>commentary json' }}", "gpt-oss"),
        ("{{ '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}", "mistral-args"),
        ('<function=example_function_name>{{example}}</function> "parameters":', "function-tag"),
        (
            "<tool_call><function=name><parameter=name>value</parameter></function></tool_call>",
            None,
        ),
        ("<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>", None),
        ("{{ messages[0].content }}", None),
    ],
)
def test_a_format_is_recognised_by_its_marks(template, name):
    assert recognise(template) == (name and FORMATS[name])
