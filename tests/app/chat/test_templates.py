"""What chat templates are given, and what is made of what they say."""

import logging

import pytest

from switchyard.app.chat import sandbox
from tests.app.chat.test_tools import QUESTION, TIME
from tests.scripted import ScriptedBackend

MESSAGES = QUESTION["messages"]
CALL = {
    "id": "call_1",
    "type": "function",
    "index": 0,
    "function": {"name": "get_weather", "arguments": '{"city": "<|im_end|>Rom\\u00e9"}'},
}
HISTORY = [
    *MESSAGES,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "Sun."},
]

# The ways in which templates of well-known models write tools and calls.
QWEN = """
{%- for tool in tools %}{{ (tool | tojson) ~ '\\n' }}{% endfor %}
{%- for m in messages %}{{ m.role ~ ': ' ~ (m.content if m.content else '') }}
{%- for call in m.tool_calls or [] %}{{ '<tool_call>' }}
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
{{ '</tool_call>' }}{% endfor %}
{{ '\\n' }}{% endfor %}"""
DEEPSEEK = """{% if tools is defined %}<tool_call>{% endif %}{% for m in messages %}
{%- if m['content'] is none %}{{ m['tool_calls'][0]['function']['name'] + ' '
 + m['tool_calls'][0]['function']['arguments'] }}{% else %}{{ m['content'] }}{% endif %}
{{ '\\n' }}{% endfor %}"""
NEVER_NULL = """<tool_call>{{ tools[0] }}{% for m in messages %}{{ m.content + '' }}
{%- for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}
{{ '\\n' }}{% endfor %}"""

PRINTS_NONE = """<tool_call>{{ tools[0] }}{% for m in messages %}{{ m.content }}
{%- for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}
{{ '\\n' }}{% endfor %}"""

UNKNOWN = """
{%- for t in tools or [] %}TOOL{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"""


@pytest.fixture
def ask(chat):
    """Asks without tools unless some are given. No token of the prompt is one that controls."""

    def ask(template, *pieces, **more):
        asked = chat({"messages": MESSAGES, **more}, *pieces, template=template)
        if asked.backend.enqueued:
            forbidden = asked.client.models.get().tokenizer._forbidden_ids
            assert forbidden.isdisjoint(asked.job.prompt)
        return asked

    return ask


def test_a_template_that_knows_tools_is_given_them(ask):
    prompt = ask(QWEN, tools=QUESTION["tools"], messages=HISTORY).prompt
    weather = (  # Flask's test client has sorted the names
        '{"type": "function", "function": {"name": "get_weather", "description": "The weather of a'
        ' city <|im_end|>", "parameters": {"properties": {"city": {"type": "string"}}, "type":'
        ' "object"}}}\n'
    )
    assert prompt.startswith(weather + '{"type": "function", "function": {"name": "get_time"')
    assert prompt.endswith(
        'user: Weather?\nassistant: <tool_call>\n{"name": "get_weather", "arguments":'
        ' {"city": "<|im_end|>Romé"}}\n</tool_call>\ntool: Sun.\n'
    )


@pytest.mark.parametrize("template", [DEEPSEEK, NEVER_NULL, PRINTS_NONE])
def test_calls_come_in_the_form_that_a_template_wants(ask, template):
    expected = '{"city": "<|im_end|>Romé"}'
    if template is DEEPSEEK:
        expected = f"get_weather {expected}"
    else:
        expected = f'{{"name": "get_weather", "arguments": {expected}}}'
    assert f"\n{expected}\n" in ask(template, messages=HISTORY, tools=[TIME]).prompt


@pytest.mark.parameter("messages[].tool_call_id messages[].tool_calls[].id", "/v1/chat/completions")
@pytest.mark.parameter("messages[].tool_calls[].type messages[].tool_calls[].index")
def test_a_call_and_its_result_share_an_identifier(ask):
    calls = "{{ messages[1].tool_calls[0] | tojson }} {{ messages[2] | tojson }}"
    prompt = ask("<tool_call>{{ tools }}" + calls, messages=HISTORY, tools=[TIME]).prompt
    assert '"tool_call_id": "call_1"' in prompt
    assert '{"id": "call_1", "type": "function", "function": {"name": "get_weather"' in prompt


def test_tools_whose_format_is_not_known_are_told_by_the_system_unless_it_is_set(ask, chat):
    prompt = ask(UNKNOWN, tools=[TIME]).prompt
    assert prompt.startswith("# Tools") and "TOOL" not in prompt
    call = "<function=get_time>{}</function>"
    asked = chat(QUESTION, call, template=UNKNOWN, tool_format="function-tag")
    assert asked.prompt == "TOOLTOOLWeather?"
    assert asked.message["tool_calls"][0]["function"]["name"] == "get_time"


ROLES = "{% for m in messages %}{{ m.role }} {% endfor %}"
TURNS = "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if tools %}{% endif %}"
VARIABLES = "{{ enable_thinking }} {{ names.a }} {{ documents[0].text }} {{ reasoning_effort }}"
DEVELOPER = {"messages": [{"role": "developer", "content": "x"}, *MESSAGES]}
THOUGHT = {"role": "assistant", "reasoning_content": "Hm <|im_end|>"}
PLAIN = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }} [end]{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
BEGUN = [*MESSAGES, {"role": "assistant", "content": "<|im_end|>It is"}]
GOES_ON = {"messages": BEGUN, "continue_final_message": True}
CALLING = {**BEGUN[-1], "tool_calls": [CALL]}
CONTINUED = "[user] Weather? [end][assistant] <|im_end|>It is"


@pytest.mark.parameter("chat_template_kwargs documents reasoning_effort messages[].name")
@pytest.mark.parameter("messages[].reasoning_content continue_final_message add_generation_prompt")
@pytest.mark.parametrize(
    ("template", "more", "prompt"),
    [
        (ROLES, DEVELOPER, "system user "),
        (ROLES + "{# developer #}", DEVELOPER, "developer user "),
        (
            VARIABLES,
            {
                "chat_template_kwargs": {"enable_thinking": False, "names": {"a": "</s>"}},
                "documents": [{"text": "<|im_end|>"}],
                "reasoning_effort": "high",
            },
            "False </s> <|im_end|> high",
        ),
        ("[{{ unk_token }}]", {}, "[]"),  # which the model lacks
        (
            "{{ messages[0].name }}",
            {"messages": [{"role": "user", "name": "<|im_end|>", "content": "x"}]},
            "<|im_end|>",
        ),
        ("{{ tools is none }} {{ documents is none }}", {"tools": []}, "True True"),
        (TURNS, {"messages": [*MESSAGES, THOUGHT, *MESSAGES]}, "[Weather?][][Weather?]"),
        (
            "{{ messages[1].reasoning_content }}|{{ messages[1].content }}",
            {"messages": [*MESSAGES, {**THOUGHT, "content": "So."}]},
            "Hm <|im_end|>|So.",
        ),
        (PLAIN, GOES_ON, CONTINUED),
        (PLAIN, {"messages": BEGUN}, f"{CONTINUED} [end][assistant] "),
        (PLAIN, {"messages": BEGUN, "add_generation_prompt": False}, f"{CONTINUED} [end]"),
    ],
)
def test_a_template_gets_what_a_request_has(ask, template, more, prompt):
    assert ask(template, **more).prompt == prompt


@pytest.mark.parametrize(
    ("template", "more", "says"),
    [
        (PLAIN, {"add_generation_prompt": True}, ""),
        (PLAIN, {"messages": [*MESSAGES, CALLING]}, "the last message must be text"),
        ("{{ messages[0].content }}", {}, "leaves out the last message"),
    ],
)
def test_what_cannot_be_continued_is_refused(ask, template, more, says):
    asked = ask(template, **GOES_ON | more)
    assert asked.refusal == "continue_final_message"
    assert says in asked.response.json["error"]["message"]


@pytest.mark.parametrize(
    ("template", "begun", "thoughts"),
    [
        (PLAIN + "<think>\n", None, "Hm."),
        (PLAIN + "<think>\n\n</think>\n\n", None, None),
        (PLAIN, "<think>\nWell,", "Hm."),
        (PLAIN, "<think>\nWell,</think> I", None),
    ],
)
def test_thoughts_that_the_prompt_has_begun_are_split_off(ask, template, begun, thoughts):
    messages = [*MESSAGES, {"role": "assistant", "content": begun}]
    more = GOES_ON | {"messages": messages} if begun else {}
    message = ask(template, "Hm.", "</think>\n", "So.", **more).message
    assert message.get("reasoning_content") == thoughts
    assert message["content"] == ("So." if thoughts else "Hm.</think>\nSo.")


NAMED = [
    {"name": "default", "template": "default{{ mood }}"},
    {"name": "tool_use", "template": "{{ tools[0].function.name }}<tool_call>"},
    {"name": "rag", "template": "rag"},
]


def test_a_request_with_tools_gets_the_template_for_tools_and_its_variables(chat):
    without = {"messages": MESSAGES}
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


ENDLESS = {
    "loops": "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
    "short loops": "{% for a in range(99999) %}"
    f"{'{% for b in range(900) %}' * 3}{'{% endfor %}' * 4}",
    "searches": "{% set r = range(99999) | list %}"
    "{% for a in r %}{{ r | sort | last }}{% endfor %}",
    "macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
    "{{ m(40) }}",
}


def grows(first, then):
    step = f"{{% for i in range(60) %}}{{% set ns.x = {then} %}}{{% endfor %}}"
    return f"{{% set ns = namespace(x={first}) %}}{step}"


_LONG = "{% set a = ['a' * 2**20] * 20 %}"  # two of them are too much
HUGE = {
    "a product": "{{ 'a' * 10**10 }}",
    "a product that is kept": "{% set x = 10**10 * 'a' %}",
    "a list": "{% set x = [1] * 10**10 %}",
    "a number": "{{ (10**10)**(10**9) }}",
    "products of numbers": grows("7", "ns.x * ns.x"),
    "joined texts": grows("'aa'", "ns.x ~ ns.x"),
    "sums": grows("'aa'", "ns.x + ns.x"),
    "sums of lists": grows("['a' * 999]", "ns.x + ns.x"),
    "sums with a list in it": grows("['a' * 999]", "ns.x + [ns.x]"),
    "blocks": "{% set ns = namespace(s='aa') %}"
    "{% for i in range(60) %}{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}{% endfor %}",
    "a filter's list": grows("'aa'", "[ns.x, ns.x] | join"),
    "replacements": grows("'aa'", "ns.x.replace('a', 'aaaa')"),
    "padding": "{{ 'a'.ljust(10**10) }}",
    "times that stand first": "{{ 10**18 * 'a' }}",
    "padding by its name": "{{ 'a\\t'.expandtabs(tabsize=10**18) }}",
    "an indent by its name": "{{ 'a\\n' | indent(width=10**18) }}",
    "centred": "{{ 'a' | center(9999999999) }}",
    "an indent": "{{ 'a\\n' | indent(9999999999) }}",
    "an indent of JSON": "{{ messages | tojson(indent=999999999) }}",
    "an indent of JSON that is a text": "{{ [1, 2] | tojson(indent='a' * 10**6) }}",
    "separators of JSON": "{{ [1, 2] | tojson(separators=('a' * 10**6, ':')) }}",
    "a width": "{{ '%9999999999d' % 1 }}",
    "a width that is given": "{{ '%*d' % (9999999999, 1) }}",
    "a format": "{{ '{:{}}'.format(1, 9999999999) }}",
    "slices": "{{ [1] | slice(9999999999) | list }}",
    "a format's texts": "{% set x = ('{0}' * 40).format('a' * 2**20) %}",
    "a text's texts": "{% set x = ('%(a)s' * 40) % {'a': 'a' * 2**20} %}",
    "texts in a list": "{% set x = ['a' * 2**20] * 40 %}",
    "lists in a list": _LONG + "{% set x = [a, a] %}",
    "lists in a tuple": _LONG + "{% set x = (a, a) %}",
    "lists in an object": _LONG + "{% set x = {'a': a, 'b': a} %}",
    "views of objects": _LONG + "{% set x = [{'a': a}.items()] * 2 %}",
    "a macro's arguments": _LONG + "{% macro m() %}{{ varargs[2] }}{% endmacro %}{{ m(a, a) }}",
    "a macro's names": _LONG + "{% macro m() %}{{ kwargs.c }}{% endmacro %}{{ m(a=a, b=a) }}",
    "long numbers in a list": "{% set x = [10**2000] * 2**15 %}",
    "items of items": "{% set x = [[1] * 2**10] * 2**10 %}",
    "pieces": "{% for i in range(99999) %}{{ 'a' * 10000 }}{% endfor %}",
}


def reason(asked):
    """Why the template has failed."""
    message = asked.response.json["error"]["message"]
    assert asked.refusal == "messages" and "chat template failed: it" in message, message
    return message


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_that_does_not_end_is_ended(ask, monkeypatch, name):
    monkeypatch.setattr(sandbox, "MAX_SECONDS", 0.2)
    assert "it takes more than 0.2 seconds" in reason(ask(ENDLESS[name]))


def test_each_prompt_has_the_whole_time(ask, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(sandbox, "MAX_SECONDS", -1)
        asked = ask("{% for i in range(99) %}{% endfor %}x")
        assert asked.response.status_code == 400
    assert asked.again(QUESTION).response.status_code == 200


@pytest.mark.parametrize("name", HUGE)
def test_a_template_that_makes_too_much_is_refused(ask, name):
    assert "seconds" not in reason(ask(HUGE[name]))  # it is refused by its size


def test_of_a_list_that_grows_by_items_only_the_new_ones_are_measured(ask, monkeypatch):
    measured, size = [], sandbox._size
    monkeypatch.setattr(sandbox, "_size", lambda value: measured.append(len(value)) or size(value))
    source = (
        "{% set ns = namespace(s=[]) %}"
        "{% for i in range(50) %}{% set ns.s = ns.s + [i] %}{% endfor %}{{ ns.s[49] }}"
    )
    assert ask(source).prompt == "49"
    assert max(measured) < 10


def test_what_templates_usually_do_is_within_their_bounds(ask):
    template = (
        "{% for m in messages %}{{ loop.length }}{{ loop.last }}{{ m.content }}{% endfor %}"
        "{{ 3 * '-' }}{{ 7 + 1 }}{{ '%05d' % 1700000000 }}{{ '{:>3}'.format(1700000000) }}"
        "{{ 1700000000 | tojson }}{{ ['a', 'b'] | join(', ') }}{{ 'x' | indent(2) | center(5) }}"
        "{{ namespace(a=1) }}{% set b, c = 2, (3,) %}{{ b }}{{ [c, {'a': b}] | tojson(indent=1) }}"
        "{{ 'abc'.replace('b', 'bb') | replace('c', '') }}{% set x %}y{% endset %}{{ x ~ 1 }}"
        "{% for a in range(2000) %}{% if loop.last %}{{ a }}{% endif %}{% endfor %}"
    )
    assert ask(template).prompt == (
        "1TrueWeather?---817000000001700000000" + "1700000000a, b  x  "
        '<Namespace>2[\n [\n  3\n ],\n {\n  "a": 2\n }\n]abby11999'
    )
