"""What chat templates are given, and what is made of what they say."""

import pytest

from switchyard.app.chat import sandbox
from tests.app.chat.test_tools import QUESTION, TIME
from tests.scripted import ScriptedBackend, says

URL = "/v1/chat/completions"
CALL = {
    "id": "call_1",
    "type": "function",
    "index": 0,
    "function": {"name": "get_weather", "arguments": '{"city": "<|im_end|>Rom\\u00e9"}'},
}
HISTORY = [
    *QUESTION["messages"],
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


def ask(make_client, path, script=None, **request):
    """(answer, prompt)"""
    backend = ScriptedBackend(script or says("x"))
    client = make_client(backend, path=path)
    response = client.post(URL, json={**QUESTION, "tools": [], **request})
    tokenizer = client.models.get().tokenizer
    prompt = backend.enqueued[0].prompt if backend.enqueued else ()
    assert tokenizer._forbidden_ids.isdisjoint(prompt)
    return response, tokenizer.decode(prompt)


def test_a_template_that_knows_tools_is_given_them(make_client, with_template):
    _, prompt = ask(make_client, with_template(QWEN), tools=QUESTION["tools"], messages=HISTORY)
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


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (DEEPSEEK, '\nget_weather {"city": "<|im_end|>Romé"}\n'),
        (NEVER_NULL, '\n{"name": "get_weather", "arguments": {"city": "<|im_end|>Romé"}}\n'),
        (PRINTS_NONE, '\n{"name": "get_weather", "arguments": {"city": "<|im_end|>Romé"}}\n'),
    ],
)
def test_calls_come_in_the_form_that_a_template_wants(
    make_client, with_template, template, expected
):
    path = with_template(template)
    _, prompt = ask(make_client, path, messages=HISTORY, tools=[TIME])
    assert expected in prompt


@pytest.mark.parameter("messages[].tool_call_id", "/v1/chat/completions")
@pytest.mark.parameter("messages[].tool_calls[].id", "/v1/chat/completions")
@pytest.mark.parameter("messages[].tool_calls[].type")
@pytest.mark.parameter("messages[].tool_calls[].index")
def test_a_call_and_its_result_share_an_identifier(make_client, with_template):
    calls = "{{ messages[1].tool_calls[0] | tojson }} {{ messages[2] | tojson }}"
    template = "<tool_call>{{ tools }}" + calls
    _, prompt = ask(make_client, with_template(template), messages=HISTORY, tools=[TIME])
    assert '"tool_call_id": "call_1"' in prompt
    assert '{"id": "call_1", "type": "function", "function": {"name": "get_weather"' in prompt


def test_tools_whose_format_is_not_known_are_told_by_the_system(make_client, with_template):
    _, prompt = ask(make_client, with_template(UNKNOWN), tools=[TIME])
    assert prompt.startswith("# Tools") and "TOOL" not in prompt


def test_a_format_can_be_set(make_client, with_template):
    backend = ScriptedBackend(says("<function=get_time>{}</function>"))
    client = make_client(backend, path=with_template(UNKNOWN), tool_format="function-tag")
    [choice] = client.post(URL, json=QUESTION).json["choices"]
    assert client.models.get().tokenizer.decode(backend.enqueued[0].prompt) == "TOOLTOOLWeather?"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_time"


def test_the_developer_speaks_as_system_unless_the_template_knows_better(
    make_client, with_template
):
    template = "{% for m in messages %}{{ m.role }} {% endfor %}"
    messages = [{"role": "developer", "content": "x"}, *QUESTION["messages"]]
    path = with_template(template)
    assert ask(make_client, path, messages=messages)[1] == "system user "
    path = with_template(template + "{# developer #}")
    assert ask(make_client, path, messages=messages)[1] == "developer user "


@pytest.mark.parameter("chat_template_kwargs")
@pytest.mark.parameter("documents")
@pytest.mark.parameter("reasoning_effort")
def test_variables_documents_and_effort_reach_a_template_that_uses_them(make_client, with_template):
    path = with_template(
        "{{ enable_thinking }} {{ names.a }} {{ documents[0].text }} {{ reasoning_effort }}"
    )
    _, prompt = ask(
        make_client,
        path,
        chat_template_kwargs={"enable_thinking": False, "names": {"a": "</s>"}},
        documents=[{"text": "<|im_end|>"}],
        reasoning_effort="high",
    )
    assert prompt == "False </s> <|im_end|> high"


def test_a_token_that_the_model_lacks_is_empty_in_the_prompt(make_client, with_template):
    assert ask(make_client, with_template("[{{ unk_token }}]"))[1] == "[]"


@pytest.mark.parameter("messages[].name")
def test_names_of_authors_are_text_to_the_model(make_client, with_template):
    path = with_template("{{ messages[0].name }}")
    messages = [{"role": "user", "name": "<|im_end|>", "content": "x"}]
    assert ask(make_client, path, messages=messages)[1] == "<|im_end|>"


def test_without_tools_and_documents_both_are_none_to_the_template(make_client, with_template):
    template = "{{ tools is none }} {{ documents is none }}"
    assert ask(make_client, with_template(template))[1] == "True True"


PLAIN = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }} [end]{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
BEGUN = [*QUESTION["messages"], {"role": "assistant", "content": "<|im_end|>It is"}]


@pytest.mark.parameter("continue_final_message")
@pytest.mark.parameter("add_generation_prompt")
def test_the_last_message_can_be_continued(make_client, with_template):
    path = with_template(PLAIN)
    _, prompt = ask(make_client, path, messages=BEGUN, continue_final_message=True)
    assert prompt == "[user] Weather? [end][assistant] <|im_end|>It is"
    _, prompt = ask(make_client, path, messages=BEGUN)
    assert prompt.endswith("<|im_end|>It is [end][assistant] ")
    _, prompt = ask(make_client, path, messages=BEGUN, add_generation_prompt=False)
    assert prompt.endswith("<|im_end|>It is [end]")


def test_what_cannot_be_continued_is_refused(make_client, with_template):
    both = {"continue_final_message": True, "add_generation_prompt": True}
    response, _ = ask(make_client, with_template(PLAIN), messages=BEGUN, **both)
    assert (response.status_code, response.json["error"]["param"]) == (
        400,
        "continue_final_message",
    )
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = [*QUESTION["messages"], {**BEGUN[-1], "tool_calls": [call]}]
    response, _ = ask(
        make_client, with_template(PLAIN), messages=called, continue_final_message=True
    )
    assert response.status_code == 400
    assert "the last message must be text" in response.json["error"]["message"]
    path = with_template("{{ messages[0].content }}")
    response, _ = ask(make_client, path, messages=BEGUN, continue_final_message=True)
    assert response.status_code == 400
    assert "leaves out the last message" in response.json["error"]["message"]


@pytest.mark.parametrize(
    ("template", "begun", "thoughts"),
    [
        (PLAIN + "<think>\n", None, "Hm."),
        (PLAIN + "<think>\n\n</think>\n\n", None, None),
        (PLAIN, "<think>\nWell,", "Hm."),
        (PLAIN, "<think>\nWell,</think> I", None),
    ],
)
def test_thoughts_that_the_prompt_has_begun_are_split_off(
    make_client, with_template, template, begun, thoughts
):
    more = {}
    if begun:
        messages = [*QUESTION["messages"], {"role": "assistant", "content": begun}]
        more = {"messages": messages, "continue_final_message": True}
    path = with_template(template)
    response, _ = ask(make_client, path, says("Hm.", "</think>\n", "So."), **more)
    message = response.json["choices"][0]["message"]
    assert message.get("reasoning_content") == thoughts
    assert message["content"] == ("So." if thoughts else "Hm.</think>\nSo.")


@pytest.mark.parameter("messages[].reasoning_content")
def test_a_turn_without_text_is_none_in_the_prompt(make_client, with_template):
    backend = ScriptedBackend(says("x"))
    template = "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if tools %}{% endif %}"
    client = make_client(backend, path=with_template(template), tool_format="hermes")
    thoughts = {"role": "assistant", "reasoning_content": "Hm."}
    messages = [{"role": "user", "content": "a"}, thoughts, {"role": "user", "content": "b"}]
    assert client.post("/v1/chat/completions", json={"messages": messages}).status_code == 200
    assert client.models.get().tokenizer.decode(backend.enqueued[-1].prompt) == "[a][][b]"


def test_thoughts_sent_back_reach_a_template_that_uses_them(make_client, with_template):
    path = with_template("{{ messages[1].reasoning_content }}|{{ messages[1].content }}")
    messages = [
        *QUESTION["messages"],
        {"role": "assistant", "content": "So.", "reasoning_content": "Hm <|im_end|>"},
    ]
    assert ask(make_client, path, messages=messages)[1] == "Hm <|im_end|>|So."


ENDLESS = {
    "loops": "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
    "short loops": "{% for a in range(99999) %}"
    + "{% for b in range(900) %}" * 3
    + "{% endfor %}" * 4,
    "searches": "{% set r = range(99999) | list %}"
    "{% for a in r %}{{ r | sort | last }}{% endfor %}",
    "macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
    "{{ m(40) }}",
}
_LONG = "{% set a = ['a' * 2**20] * 20 %}"  # two of them are too much
HUGE = {
    "a product": "{{ 'a' * 10**10 }}",
    "a product that is kept": "{% set x = 10**10 * 'a' %}",
    "a list": "{% set x = [1] * 10**10 %}",
    "a number": "{{ (10**10)**(10**9) }}",
    "products of numbers": "{% set ns = namespace(n=7) %}"
    "{% for i in range(60) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "joined texts": "{% set ns = namespace(s='aa') %}"
    "{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "sums": "{% set ns = namespace(s='aa') %}"
    "{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "sums of lists": "{% set ns = namespace(s=['a' * 999]) %}"
    "{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "sums with a list in it": "{% set ns = namespace(s=['a' * 999]) %}"
    "{% for i in range(60) %}{% set ns.s = ns.s + [ns.s] %}{% endfor %}",
    "blocks": "{% set ns = namespace(s='aa') %}"
    "{% for i in range(60) %}{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}{% endfor %}",
    "a filter's list": "{% set ns = namespace(s='aa') %}"
    "{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] | join %}{% endfor %}",
    "replacements": "{% set ns = namespace(s='aa') %}"
    "{% for i in range(60) %}{% set ns.s = ns.s.replace('a', 'aaaa') %}{% endfor %}",
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


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_that_does_not_end_is_ended(make_client, with_template, monkeypatch, name):
    monkeypatch.setattr("switchyard.app.chat.sandbox.MAX_SECONDS", 0.2)
    response, _ = ask(make_client, with_template(ENDLESS[name]))
    error = response.json["error"]
    assert (response.status_code, error["param"]) == (400, "messages")
    assert "chat template failed: it takes more than 0.2 seconds" in error["message"]


def test_each_prompt_has_the_whole_time(make_client, with_template, monkeypatch):
    backend = ScriptedBackend()
    client = make_client(backend, path=with_template("{% for i in range(99) %}{% endfor %}x"))
    with monkeypatch.context() as patched:
        patched.setattr(sandbox, "MAX_SECONDS", -1)
        assert client.post(URL, json=QUESTION).status_code == 400
    assert client.post(URL, json=QUESTION).status_code == 200


@pytest.mark.parametrize("name", HUGE)
def test_a_template_that_makes_too_much_is_refused(make_client, with_template, name):
    response, _ = ask(make_client, with_template(HUGE[name]))
    error = response.json["error"]
    assert (response.status_code, error["param"]) == (400, "messages")
    assert "chat template failed: it" in error["message"], error
    assert "seconds" not in error["message"]  # it is refused by its size


def test_of_a_list_that_grows_by_items_only_the_new_ones_are_measured(
    make_client, with_template, monkeypatch
):
    measured, size = [], sandbox._size
    monkeypatch.setattr(sandbox, "_size", lambda value: measured.append(len(value)) or size(value))
    source = (
        "{% set ns = namespace(s=[]) %}"
        "{% for i in range(50) %}{% set ns.s = ns.s + [i] %}{% endfor %}{{ ns.s[49] }}"
    )
    assert ask(make_client, with_template(source))[1] == "49"
    assert max(measured) < 10


def test_what_templates_usually_do_is_within_their_bounds(make_client, with_template):
    template = (
        "{% for m in messages %}{{ loop.length }}{{ loop.last }}{{ m.content }}{% endfor %}"
        "{{ 3 * '-' }}{{ 7 + 1 }}{{ '%05d' % 1700000000 }}{{ '{:>3}'.format(1700000000) }}"
        "{{ 1700000000 | tojson }}{{ ['a', 'b'] | join(', ') }}{{ 'x' | indent(2) | center(5) }}"
        "{{ namespace(a=1) }}{% set b, c = 2, (3,) %}{{ b }}{{ [c, {'a': b}] | tojson(indent=1) }}"
        "{{ 'abc'.replace('b', 'bb') | replace('c', '') }}{% set x %}y{% endset %}{{ x ~ 1 }}"
        "{% for a in range(2000) %}{% if loop.last %}{{ a }}{% endif %}{% endfor %}"
    )
    _, prompt = ask(make_client, with_template(template), messages=QUESTION["messages"][-1:])
    content = QUESTION["messages"][-1]["content"]
    assert prompt == (
        f"1True{content}---817000000001700000000" + "1700000000a, b  x  "
        '<Namespace>2[\n [\n  3\n ],\n {\n  "a": 2\n }\n]abby11999'
    )
