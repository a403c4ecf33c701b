"""Texts of models, in all kinds of pieces, to parts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.app.parts.call_formats import FORMATS, recognise
from switchyard.app.parts.parser import PartParser, Tags
from switchyard.app.parts.parts import Arguments, Reasoning, Text, ToolCall
from tests.growth import assert_within

TOOLS = {"f": "f", "get_weather": "get_weather"}
THINK = Tags("<think>", "</think>")


def parse(pieces, format=None, **more):
    """(reasoning, text, [(name, arguments)]) of the joined parts."""
    return joined(parts_of(pieces, format, **more))


def read(text, format=None, **more):
    """Likewise, of a text that comes in pieces of any length."""
    found = parse([text], format, **more)
    for size in range(1, len(text)):
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        assert parse(pieces, format, **more) == found
    return found


def parts_of(pieces, format=None, tools=TOOLS, **more):
    parser = PartParser(FORMATS[format] if format else None, tools, **more)
    return [p for piece in pieces for p in parser.push(piece)] + parser.finish()


@pytest.mark.parametrize("begun", ["<tool_c", "<tool_call>\n", '<tool_call>\n{"name": "we'])
@pytest.mark.parametrize("before", ["", "Hm."])
def test_the_beginning_of_a_call_is_no_text_of_an_answer_that_is_cut(begun, before):
    for is_cut in (False, True):
        parser = PartParser(FORMATS["hermes"], TOOLS)
        parts = [*parser.push(before + begun), *parser.finish(is_cut)]
        text = "".join(part.text for part in parts)
        assert text == (before if is_cut else before + begun)


@pytest.mark.parametrize(("begun", "is_text"), [("<thi", False), (" \n", True), ("<b", True)])
def test_the_beginning_of_thoughts_is_no_text_of_an_answer_that_is_cut(begun, is_text):
    for is_cut in (False, True):
        parser = PartParser(None, {}, THINK)
        parts = [*parser.push(begun), *parser.finish(is_cut)]
        assert bool(parts) == (is_text or not is_cut)


def joined(parts):
    calls = []
    for part in parts:
        match part:
            case ToolCall(index, identifier, name):
                assert index == len(calls) and identifier
                calls.append([name, ""])
            case Arguments(index, text):
                assert index == len(calls) - 1 and text
                calls[index][1] += text
    text = "".join(p.text for p in parts if isinstance(p, Text))
    reasoning = "".join(p.text for p in parts if isinstance(p, Reasoning))
    return reasoning, text, [tuple(call) for call in calls]


CALLS = [
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>'),
    ("hermes", '<tool_call>{"id": "1", "name": "f", "arguments": {"a": 1}}'),
    ("hermes", '<tool_call>{"name": "f", "id": "1", "type": "x", "arguments": {"a": 1}}'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}, "id": "1"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}", "id": "1"}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "type": "x", "name": "f"}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f", "id": "1"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>'),
    ("llama3", '{"name": "f", "parameters": {"a": 1}}'),
    ("llama3", '{"name": "f", "arguments": {"a": 1}}'),
    ("llama3", '  {"type": "function", "name": "f", "parameters": {"a": 1}}\n'),
    ("llama3", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}'),
    ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]'),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "abcdefghi"}]'),
    ("mistral", '[{"name": "f", "arguments": {"a": 1}}]'),
    ("mistral-args", '[TOOL_CALLS]f[ARGS]{"a": 1}'),
    ("mistral-args", '[TOOL_CALLS]f{"a": 1}'),
    ("mistral-args", '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": 1}'),
    ("function-tag", '<function=f>{"a": 1}</function>'),
    (
        "gpt-oss",
        '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
    ),
    (
        "gpt-oss",
        '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>',
    ),
    ("function-tag", '\n<function=f> {"a": 1}'),
]

OBJECTS = '{"a": {"b": "{\\"", "c": {}}, "d": [{"e": 1}]}'
TWO = [("f", "{}"), ("get_weather", '{"x": "}"}')]
SEVERAL = [
    (
        "hermes",
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"x": "}"}}\n</tool_call>',
    ),
    (
        "llama3",
        '{"name": "f", "parameters": {}}; {"name": "get_weather", "parameters": {"x": "}"}}',
    ),
    ("llama3", '{"name": "f"}\n{"name": "get_weather", "parameters": {"x": "}"}}'),
    (
        "mistral",
        '[TOOL_CALLS][{"name": "f", "arguments": {}}, '
        '{"arguments": {"x": "}"}, "name": "get_weather"}]',
    ),
    ("mistral-args", '[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]get_weather[ARGS]{"x": "}"}'),
    ("function-tag", '<function=f>{}</function><function=get_weather>{"x": "}"}</function>'),
]
NO_CALLS = [
    ("hermes", '<tool_call>{"name": "unknown", "arguments": {"a": 1}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": "no object"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": "[1]"}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {1}, "name": "f"}</tool_call>'),
    ("hermes", "<tool_call>\nf(1)\n</tool_call>"),
    ("hermes", '<tool_call>{"name": "f", "argu'),
    ("hermes", "The tag is <tool_call>"),
    ("llama3", '{"name": "unknown", "parameters": {"a": 1}}'),
    ("llama3", '{"answer": 42}'),
    ("llama3", 'So: {"name": "f", "parameters": {"a": 1}}'),
    ("llama3", '<|python_tag|>brave_search.call(query="x")'),
    ("mistral", '[TOOL_CALLS][{"name": "unknown", "arguments": {}}]'),
    ("mistral", "[TOOL_CALLS] none"),
    ("mistral-args", "[TOOL_CALLS]unknown[ARGS]{}"),
    ("mistral-args", "[TOOL_CALLS]f[ARGS]1"),
    ("function-tag", "<function=unknown>{}</function>"),
    ("function-tag", "<function=f>a</function>\n"),
    (None, CALLS[0][1]),  # without tools
]
BEGUN = [  # stays a call
    ('<tool_call>{"name": "f", "arguments": {"a": ', '{"a": ', ""),
    ('<tool_call>{"name": "f", "arguments": {"a"; 1}}</tool_call>', '{"a"; 1}', ""),
    ('<tool_call>{"name": "f", "arguments": {}} Hello', "{}", "Hello"),
    ('<tool_call>{"name": "f", "arguments": {\\ "a": "}"}}</tool_call>', '{\\ "a": "}"}', ""),
    ('<tool_call>{"name": "f", "arguments": {}}</tool_', "{}", ""),
    ('<tool_call>{"name": "f", "arguments": {}} }x</tool_call>', "{}", "x</tool_call>"),
    # Arguments in a text may hold line breaks as they are.
    ('<tool_call>{"name": "f", "arguments": "{\\"a\\":\n1}"}</tool_call>', '{"a":\n1}', ""),
    (f'<tool_call>{{"name": "f", "arguments": {OBJECTS}}}</tool_call>', OBJECTS, ""),
    # A call behind a refused one.
    (
        '<tool_call>{"name": "g"} <tool_call>{"name": "f"}</tool_call>',
        "{}",
        '<tool_call>{"name": "g"}',
    ),
]


@pytest.mark.parametrize(
    ("format", "text", "content", "calls"),
    [
        *((format, text, "", [("f", '{"a": 1}')]) for format, text in CALLS),
        *((format, text, "", TWO) for format, text in SEVERAL),
        *((format, text, text, []) for format, text in NO_CALLS),
        *(("hermes", text, rest, [("f", arguments)]) for text, arguments, rest in BEGUN),
        ("function-tag", "<function=f>{}}}So.", "So.", [("f", "{}")]),  # braces too many
    ],
)
def test_calls_are_told_apart_from_text_in_pieces_of_any_length(format, text, content, calls):
    assert read(text, format) == ("", content, calls)


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_grammar_writes_is_what_the_parser_reads(name):
    format = FORMATS[name]
    names, arguments = ["f", "get_weather"], '{"a": "}"}'
    calls = [format.before.replace("NAME", name) + arguments + format.behind for name in names]
    text = format.opening + format.separator.join(calls) + format.closing
    assert read(text, name) == ("", "", [(name, arguments) for name in names])


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


def test_arguments_are_passed_on_as_they_come():
    parser = PartParser(FORMATS["hermes"], TOOLS)
    assert parser.push('Well.\n<tool_call>{"name": "f",') == [Text("Well.")]
    assert parser.push(' "arguments": ') == []
    call, arguments = parser.push('{"a": "x')
    assert (call.index, call.name, arguments) == (0, "f", Arguments(0, '{"a": "x'))
    assert parser.push('\\"}y"') == [Arguments(0, '\\"}y"')]
    assert parser.push("} }</tool") == [Arguments(0, "}")]
    assert parser.push("_call>\n") == []
    assert parser.push("Bye") == [Text("\nBye")]


@pytest.mark.parametrize("format", FORMATS)
def test_text_is_held_back_only_where_a_call_may_begin(format):
    parser = PartParser(FORMATS[format], TOOLS)
    assert parser.push("I think 3 < 4 [or") == [Text("I think 3 < 4 [or")]
    assert parser.push(" so] ") == [Text(" so]")]
    assert parser.push("it is") == [Text(" it is")]


def test_identifiers_are_as_the_models_template_wants_them():
    [call, _] = parts_of([CALLS[0][1]], "hermes")
    assert call.identifier.startswith("call_") and len(call.identifier) == 29
    [call, _] = parts_of(['[TOOL_CALLS]f[ARGS]{"a": 1}'], "mistral-args")
    assert len(call.identifier) == 9 and call.identifier.isalnum()


def test_behind_the_last_allowed_call_all_is_dropped():
    text = CALLS[0][1]
    parser = PartParser(FORMATS["hermes"], TOOLS, max_calls=1)
    parser.push(text[:-20])
    assert not parser.is_over
    parser.push(text[-20:])
    assert parser.is_over
    assert parser.push(text) == parser.finish() == []
    assert parse([text + text], "hermes", max_calls=1)[2] == [("f", '{"a": 1}')]


CHANNELS = Tags("<|channel|>analysis<|message|>", "<|end|>")
WHY, START = "<|channel|>analysis<|message|>Why?<|end|>", "<|start|>assistant"
FINAL = "<|channel|>final<|message|>So."
TO_F = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'
LOOK = "<|channel|>commentary<|message|>I look.<|end|>"
ONE = [("f", '{"a": 1}')]


@pytest.mark.parametrize(
    ("text", "expected", "format", "tags"),
    [
        ("<think>\nWhy?\n\n</think>\n\nSo.", ("Why?", "So.", []), None, THINK),
        ("\n<think> a </thin b </think>c</think>", ("a </thin b", "c</think>", []), None, THINK),
        ("<think></think>Yes", ("", "Yes", []), None, THINK),
        ("<think>endless ", ("endless ", "", []), None, THINK),
        ("No. <think>x</think>", ("", "No. <think>x</think>", []), None, THINK),
        ("<thin", ("", "<thin", []), None, THINK),
        ("", ("", "", []), None, THINK),
        (" ", ("", " ", []), None, THINK),
        (f"<think>{CALLS[0][1]}</think>{CALLS[0][1]}", (CALLS[0][1], "", ONE), "hermes", THINK),
        (
            '<think>x</think>\n{"name": "f", "parameters": {}}',
            ("x", "", [("f", "{}")]),
            "llama3",
            THINK,
        ),
        (FINAL, ("", "So.", []), "gpt-oss", CHANNELS),
        (WHY + START + FINAL, ("Why?", "So.", []), "gpt-oss", CHANNELS),
        (WHY + START + TO_F, ("Why?", "", ONE), "gpt-oss", CHANNELS),
        (WHY + START + LOOK + START + TO_F, ("Why?", "I look.", ONE), "gpt-oss", CHANNELS),
    ],
)
def test_thoughts_are_split_off(text, expected, format, tags):
    assert read(text, format, tags=tags) == expected


def test_thoughts_that_the_prompt_has_opened_need_no_tag():
    assert read("\nWhy?\n</think>\nSo.", tags=THINK, is_reasoning=True) == ("Why?", "So.", [])


def test_tokens_of_thoughts_are_counted_with_their_tags():
    for pieces, count in [(["<thi", "nk>", "a", "b</", "think>", "c", "d"], 5), (["a", "b"], 0)]:
        parser = PartParser(None, tags=THINK)
        for piece in pieces:
            parser.push(piece, 1)
        parser.finish()
        assert parser.reasoning_tokens == count
    parser = PartParser(None, tags=THINK, is_reasoning=True)
    parser.push("a", 1)
    parser.push("b</think>", 2)
    parser.push("c", 4)
    assert parser.reasoning_tokens == 3


def test_a_long_text_that_may_become_a_call_takes_no_square_of_its_length():
    def work(length):
        arguments = json.dumps(json.dumps({"a": "x" * length}))
        text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
        return lambda: parse(text, "hermes")

    assert len(work(1000)()[2][0][1]) > 1000
    assert_within(13, work(400_000), work(50_000))


SCRAPS = st.sampled_from(
    ["<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"]
    + ["<|python_tag|>", "<function=f>", "</function>", '{"name": "f", "arguments": ', '"name"']
    + [
        '{"name": "f", "parameters": ',
        '{"name": "f"',
        ', "id": "1"',
        '{"arguments": {"a": 1}',
        "[{",
    ]
    + ["{", "}", "}}", "]", ",", ";", '"', "\\", " ", "\n", "f", "x", "[", "<", "\u2028"]
    + [text for _, text in CALLS]
)


@given(
    st.lists(SCRAPS, max_size=12).map("".join),
    st.lists(st.integers(0, 300), max_size=12),
    st.sampled_from(list(FORMATS)),
    st.booleans(),
    st.sampled_from([None, 1]),
)
def test_pieces_make_no_difference(text, cuts, format, is_reasoning, max_calls):
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    pieces = [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    options = {"tags": THINK, "is_reasoning": is_reasoning, "max_calls": max_calls}
    expected = parse([text], format, **options)
    assert parse(pieces, format, **options) == parse(text, format, **options) == expected


@given(st.lists(SCRAPS, max_size=12).map("".join), st.sampled_from(list(FORMATS)))
def test_no_text_is_lost(text, format):
    reasoning, content, calls = parse(text, format)
    assert not reasoning
    if not calls:
        assert content == text
    for _, arguments in calls:
        assert arguments in text or json.dumps(arguments) in text or arguments == "{}"
