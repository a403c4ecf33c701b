"""The format of calls, read from what a chat template writes for known calls."""

import pytest

from switchyard import engine
from switchyard.app.chat.template import ChatTemplate
from switchyard.app.parts.call_formats import FORMATS
from tests.app.chat.shapes import SHAPES
from tests.app.chat.test_enforced import REQUEST, STRICT, named

ONE = [("get_weather", '{"city": "Rome"}')]
TWO = [*ONE, ("set_alarm", '{"hour": 1}')]


def written(call, separator, opening="", closing=""):
    """One call, and two."""
    one, two = call % ONE[0], call % TWO[1]
    return opening + one + closing, f"{opening}{one}{separator}{two}{closing}"


# What the models of each template write
CALLS = {
    "hermes": written('<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>', "\n"),
    "single": written('{"name": "%s", "parameters": %s}', "; "),
    "alternating": written('{"name": "%s", "arguments": %s}', ", ", "[TOOL_CALLS] [", "]"),
    "named": written(
        "<|call|>function<|sep|>%s\n```json\n%s\n```<|/call|>", "\n", "<|calls|>", "<|/calls|>"
    ),
    "listed": written('{"name": "%s", "arguments": %s}', ", ", "[", "]"),
}
CALLS["by name"] = CALLS["first alone"] = CALLS["single"]


@pytest.fixture
def ask(chat):
    """(calls, text) of an answer to a model that has written a text, and verdicts on others."""

    def ask(shape, written, **more):
        request = {**REQUEST, "parallel_tool_calls": True, **more}
        asked = chat(request, *written, template=SHAPES[shape])
        whole = calls_of([asked.message])
        assert calls_of(asked.again({**request, "stream": True}).deltas) == whole
        return *whole, asked.verdict

    return ask


def calls_of(parts):
    calls, text = {}, ""
    for part in parts:
        text += part.get("content") or ""
        for i, call in enumerate(part.get("tool_calls") or ()):
            name, arguments = calls.get(call.get("index", i), ("", ""))
            function = call["function"]
            arguments += function["arguments"]
            calls[call.get("index", i)] = (name + (function.get("name") or ""), arguments)
    return list(calls.values()), text


@pytest.mark.parametrize("shape", CALLS)
def test_calls_are_read_in_the_format_of_the_template(ask, shape):
    one, two = CALLS[shape]
    assert ask(shape, [one])[:2] == (ONE, "")
    assert ask(shape, two)[:2] == (TWO, "")
    begins = shape in ("single", "first alone", "by name", "listed")  # such calls have no mark
    assert ask(shape, ["Well.\n", one])[:2] == (([], f"Well.\n{one}") if begins else (ONE, "Well."))


@pytest.mark.parametrize("shape", CALLS)
@pytest.mark.parametrize(
    ("more", "is_two", "is_text"),
    [
        ({"tool_choice": "required"}, "end", "refused"),
        ({"tool_choice": named("get_weather")}, "refused", "refused"),
        ({"tools": [STRICT]}, None, "end"),
        ({"response_format": {"type": "json_object"}}, "end", "refused"),
    ],
    ids=["required", "named", "strict", "beside a form"],
)
def test_calls_are_enforced_in_the_format_of_the_template(ask, shape, more, is_two, is_text):
    one, two = CALLS[shape]
    verdict = ask(shape, [one], **more)[-1]
    assert verdict(one) == "end"
    assert is_two is None or verdict(two) == is_two
    assert verdict("It rains.") == is_text
    is_form = "response_format" in more and one.startswith("{")  # any object is of that form
    assert verdict(one.replace("Rome", "Roma")) == ("end" if is_form else "refused")


@pytest.mark.parametrize(
    ("shape", "name"), [("hermes", "hermes"), ("single", "llama3"), ("by name", "llama3")]
)
def test_the_format_of_a_known_family_is_the_named_one(with_template, shape, name):
    template = ChatTemplate(engine.ModelDir.read(with_template(SHAPES[shape])))
    assert template.chosen(has_tools=True).traits.format == FORMATS[name]


@pytest.mark.parametrize(
    "call",
    [
        "{{ call.id }}:{{ call.function.arguments | tojson }}",
        "{{ call | tojson }}",  # begins with the identifier
        "{{ call.function.name }} {{ call.function.arguments | tojson }}",  # any text may
        "<tool_call>{{ call.function.name }}{% for k, v in call.function.arguments.items() %}"
        "<arg_key>{{ k }}</arg_key>{{ v }}{% endfor %}</tool_call>",
    ],
)
def test_what_cannot_be_read_has_no_format(with_template, call):
    template = (
        "{% for m in messages %}|{{ m.content }}{% for call in m.tool_calls or [] %}"
        f"{call}{{% endfor %}}{{% endfor %}}"
    )
    found = ChatTemplate(engine.ModelDir.read(with_template(template)))
    assert found.traits.format is None and found.fault is None


def test_a_list_of_calls_needs_no_tag_at_the_beginning(ask):
    for text in CALLS["listed"]:
        calls, content, _ = ask("alternating", text)
        assert (calls, content) == ((TWO if "set_alarm" in text else ONE), "")
    assert ask("alternating", "[1, 2]")[:2] == ([], "[1, 2]")
